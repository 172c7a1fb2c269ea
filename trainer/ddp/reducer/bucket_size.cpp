#include "trainer/ddp/reducer/bucket_size.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <narrowcast/ddp_options.h>

namespace narrowcast {
namespace {

constexpr double kSmallSizesMb[] = {1, 2, 3, 6, 12};  // In addition to the default of DdpOptions.
constexpr double kAsGood = 1.01;                      // Measurements are not more exact.

}  // namespace

double BackwardPass::seconds() const {
  return ready_seconds.empty() ? 0 : *std::max_element(ready_seconds.begin(), ready_seconds.end());
}

std::vector<double> bucket_sizes(int64_t gradient_bytes) {
  const double whole = std::ceil(static_cast<double>(gradient_bytes) / kBytesOfMib);
  std::vector<double> sizes(std::begin(kSmallSizesMb), std::end(kSmallSizesMb));
  sizes.push_back(DdpOptions().bucket_cap_mb().value());
  std::erase_if(sizes, [=](double size) { return size >= whole; });
  sizes.push_back(std::max(1.0, whole));
  return sizes;
}

std::vector<size_t> ready_order(const std::vector<double>& ready_seconds) {
  std::vector<size_t> order(ready_seconds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t parameter) { return ready_seconds[parameter]; });
  return order;
}

double seconds_until_averaged(const BucketIndices& buckets, const BackwardPass& pass, const ExchangeSeconds& exchange) {
  double ready = 0;     // This bucket and those before it are ready.
  double averaged = 0;  // The buckets before it are averaged.
  for (const std::vector<size_t>& bucket : buckets) {
    int64_t numel = 0;
    for (const size_t parameter : bucket) {
      ready = std::max(ready, pass.ready_seconds[parameter]);
      numel += pass.numel[parameter];
    }
    averaged = std::max(averaged, ready) + exchange(numel);
  }
  return averaged;
}

BucketChoice choose_bucket_size(const std::vector<SizedBuckets>& candidates, const BackwardPass& pass,
                                const ExchangeSeconds& exchange) {
  BucketChoice choice{.backward_seconds = pass.seconds()};
  std::vector<double> seconds;
  for (const SizedBuckets& candidate : candidates) {
    seconds.push_back(seconds_until_averaged(candidate.buckets, pass, exchange));
    choice.sizes.push_back({.cap_mb = candidate.cap_mb,
                            .buckets = std::ssize(candidate.buckets),
                            .seconds_left = seconds.back() - choice.backward_seconds});
  }
  const double limit = kAsGood * *std::min_element(seconds.begin(), seconds.end());
  const auto largest = std::find_if(seconds.rbegin(), seconds.rend(), [=](double value) { return value <= limit; });
  choice.chosen = seconds.rend() - largest - 1;
  return choice;
}

}  // namespace narrowcast

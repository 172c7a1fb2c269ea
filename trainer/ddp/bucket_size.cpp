#include "trainer/ddp/bucket_size.h"

#include <algorithm>
#include <cmath>

namespace narrowcast {
namespace {

constexpr double kSizesMb[] = {1, 2, 3, 6, 12, 25};
constexpr double kBytesOfMb = 1024.0 * 1024.0;
constexpr double kAsGood = 1.01;  // What is measured is not more exact.

}  // namespace

double BackwardPass::seconds() const {
  return ready_seconds.empty() ? 0 : *std::max_element(ready_seconds.begin(), ready_seconds.end());
}

std::vector<double> bucket_sizes(int64_t gradient_bytes) {
  const double whole = std::ceil(static_cast<double>(gradient_bytes) / kBytesOfMb);
  std::vector<double> sizes;
  std::copy_if(std::begin(kSizesMb), std::end(kSizesMb), std::back_inserter(sizes),
               [=](double size) { return size < whole; });
  sizes.push_back(std::max(1.0, whole));
  return sizes;
}

double seconds_until_averaged(const BucketIndices& buckets, const BackwardPass& pass, const ExchangeSeconds& exchange) {
  double ready = 0;     // This bucket and those before it.
  double averaged = 0;  // Those before it.
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

BucketChoice choose_bucket_size(const std::vector<BucketLayout>& layouts, const BackwardPass& pass,
                                const ExchangeSeconds& exchange) {
  BucketChoice choice{.backward_seconds = pass.seconds()};
  std::vector<double> seconds;
  for (const BucketLayout& layout : layouts) {
    seconds.push_back(seconds_until_averaged(layout.buckets, pass, exchange));
    choice.sizes.push_back({.cap_mb = layout.cap_mb,
                            .buckets = std::ssize(layout.buckets),
                            .seconds_left = seconds.back() - choice.backward_seconds});
  }
  const double limit = kAsGood * *std::min_element(seconds.begin(), seconds.end());
  const auto largest = std::find_if(seconds.rbegin(), seconds.rend(), [=](double value) { return value <= limit; });
  choice.chosen = seconds.rend() - largest - 1;
  return choice;
}

}  // namespace narrowcast

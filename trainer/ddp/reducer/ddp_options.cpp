#include <narrowcast/ddp_options.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <narrowcast/hooks.h>
#include "trainer/ddp/reducer/bucket_size.h"

namespace narrowcast {
namespace {

constexpr double kMostMb = 1024.0 * 1024.0;  // A TiB: far more than a device holds, far less than int64 holds.

void check_cap(const char* name, double megabytes) {
  TORCH_CHECK_VALUE(megabytes > 0 && megabytes <= kMostMb, name, "=", megabytes, " must be greater than 0 and at most ",
                    kMostMb);
}

// A bucket holds at least one parameter, even if the cap is smaller.
int64_t to_bytes(double megabytes) { return std::max<int64_t>(1, static_cast<int64_t>(megabytes * kBytesOfMib)); }

}  // namespace

DdpOptions& DdpOptions::wire(hooks::WireOptions wire) {
  hook_options_.wire = wire;
  return *this;
}

DdpOptions& DdpOptions::channel_size(std::optional<int64_t> channel_size) {
  hook_options_.channel_size = channel_size;
  return *this;
}

DdpOptions& DdpOptions::local(hooks::LocalOptions local) {
  hook_options_.local = std::move(local);
  return *this;
}

DdpOptions& DdpOptions::power_sgd(hooks::PowerSgdOptions power_sgd) {
  hook_options_.power_sgd = power_sgd;
  return *this;
}

void DdpOptions::validate() const {
  hooks::check_hook_options(hook(), hook_options());
  check_cap("bucket_cap_mb", bucket_cap_mb().value_or(kMostMb));
  if (first_bucket_mb()) {
    check_cap("first_bucket_mb", *first_bucket_mb());
    TORCH_CHECK_VALUE(!bucket_cap_mb() || *first_bucket_mb() <= *bucket_cap_mb(),
                      "first_bucket_mb=", *first_bucket_mb(), " must not exceed bucket_cap_mb=", *bucket_cap_mb());
  }
  TORCH_CHECK_VALUE(!(static_graph() && find_unused_parameters()),
                    "find_unused_parameters has no effect with static_graph, which finds unused parameters itself;"
                    " set one of the two");
}

DdpOptions DdpOptions::with_hook(const std::string& name) const {
  return name == hook() ? *this : DdpOptions(*this).hook(name).hook_options({.device = hook_options().device});
}

hooks::HookOptions DdpOptions::hook_options(c10::intrusive_ptr<c10d::ProcessGroup> process_group) const {
  hooks::HookOptions options = hook_options();
  options.process_group = std::move(process_group);
  return options;
}

int64_t DdpOptions::bucket_bytes_cap() const { return to_bytes(bucket_cap_mb().value_or(kMostMb)); }

int64_t DdpOptions::first_bucket_bytes_cap() const {
  return to_bytes(bucket_cap_mb() ? std::min(first_bucket_mb().value_or(1.0), *bucket_cap_mb()) : kMostMb);
}

}  // namespace narrowcast

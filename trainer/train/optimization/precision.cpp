#include "trainer/train/optimization/precision.h"

#include <ATen/autocast_mode.h>

#include "ops/common/enumerator_names.h"

namespace narrowcast::training {
namespace {

constexpr EnumeratorNames<Precision, 3> kPrecisionNames{
    "precision", "Precision", {{{Precision::kFp32, "fp32"}, {Precision::kBf16, "bf16"}, {Precision::kFp16, "fp16"}}}};

}  // namespace

Precision parse_precision(const std::string& name) { return kPrecisionNames.parse_known(name); }

std::string to_string(Precision precision) { return std::string(kPrecisionNames.name_of(precision)); }

Autocast::Autocast(at::DeviceType device, Precision precision)
    : device_(device), active_(precision != Precision::kFp32) {
  if (active_) {
    was_enabled_ = at::autocast::is_autocast_enabled(device_);
    former_dtype_ = at::autocast::get_autocast_dtype(device_);
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(device_, precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
    at::autocast::set_autocast_enabled(device_, true);
  }
}

// Autocast's cached copies of parameters are valid only until the parameters change.
Autocast::~Autocast() {
  if (active_) {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, former_dtype_);
  }
}

}  // namespace narrowcast::training

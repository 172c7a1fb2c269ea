#include <narrowcast/hook_options.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <type_traits>

#include <narrowcast/wire_format.h>

namespace narrowcast::hooks {
namespace {

template <class T>
std::string option_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return c10::str(value);
  } else {
    return std::string(to_string(value));
  }
}

template <class T>
std::string option_text(const std::optional<T>& value) {
  return value ? option_text(*value) : "none";
}

// The option of that name.
template <class Options, class T>
NamedOption named_option(const char* name, const Options& options, T Options::*member) {
  static const Options usual;
  return {name, option_text(options.*member), options.*member != usual.*member};
}

}  // namespace

std::string_view to_string(Levels levels) {
  switch (levels) {
    case Levels::kAuto:
      return "auto";
    case Levels::kOne:
      return "one";
    case Levels::kTwo:
      return "two";
  }
  TORCH_CHECK_VALUE(false, "levels: ", static_cast<int>(levels), " is no Levels");
}

Levels parse_levels(std::string_view name) {
  for (const Levels levels : {Levels::kAuto, Levels::kOne, Levels::kTwo}) {
    if (name == to_string(levels)) return levels;
  }
  TORCH_CHECK_VALUE(false, "levels: must be auto, one or two, but is '", name, "'");
}

std::vector<NamedOption> named_options(const WireOptions& options) {
  using Options = WireOptions;
  const auto& seed = options.stochastic_rounding_seed;
  return {named_option("hook_format", options, &Options::format),
          {"stochastic_rounding", seed ? c10::str("seed ", *seed) : "false", seed.has_value()},
          named_option("error_feedback", options, &Options::error_feedback),
          named_option("exempt_one_dimensional", options, &Options::exempt_one_dimensional),
          named_option("levels", options, &Options::levels),
          named_option("node_size", options, &Options::node_size),
          named_option("link_gbit", options, &Options::link_gbit),
          named_option("link_us", options, &Options::link_us),
          named_option("auto_bits", options, &Options::auto_bits)};
}

std::vector<NamedOption> named_options(const PowerSgdOptions& options) {
  using Options = PowerSgdOptions;
  return {named_option("power_sgd_rank", options, &Options::rank),
          named_option("power_sgd_start", options, &Options::start),
          named_option("power_sgd_min_rate", options, &Options::min_rate),
          named_option("power_sgd_error_feedback", options, &Options::error_feedback),
          named_option("power_sgd_warm_start", options, &Options::warm_start),
          named_option("power_sgd_epsilon", options, &Options::epsilon),
          named_option("power_sgd_seed", options, &Options::seed),
          named_option("power_sgd_batch", options, &Options::batch),
          named_option("power_sgd_alternate", options, &Options::alternate),
          named_option("power_sgd_memory", options, &Options::memory),
          named_option("power_sgd_wire", options, &Options::wire)};
}

}  // namespace narrowcast::hooks

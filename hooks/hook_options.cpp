#include <narrowcast/hook_options.h>

#include <c10/util/StringUtil.h>

#include <type_traits>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/enumerator_names.h"

namespace narrowcast::hooks {
namespace {

constexpr EnumeratorNames<Levels, 3> kLevelsNames{
    "levels", "Levels", {{{Levels::kAuto, "auto"}, {Levels::kOne, "one"}, {Levels::kTwo, "two"}}}};

template <class T>
OptionValue value_of(const T& value) {
  if constexpr (std::is_constructible_v<std::string, T>) {
    return std::string(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return std::string(to_string(value));
  }
}

template <class T>
OptionValue value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : OptionValue();
}

// Names the options of one struct.
template <class Options>
class Namer {
 public:
  Namer(const Options& options, std::vector<NamedOption>& named) : options_(options), named_(named) {}

  template <class T>
  void operator()(OptionKind kind, const char* name, T Options::*member) const {
    (*this)(kind, name, member, value_of(options_.*member));
  }

  // One that is told in other words than its value.
  template <class T>
  void operator()(OptionKind kind, const char* name, T Options::*member, OptionValue told) const {
    static const Options usual;
    named_.push_back({name, kind, std::move(told), options_.*member != usual.*member});
  }

 private:
  const Options& options_;
  std::vector<NamedOption>& named_;
};

void add_wire(const WireOptions& options, std::vector<NamedOption>& named) {
  using Options = WireOptions;
  const Namer<Options> add(options, named);
  const auto& seed = options.stochastic_rounding_seed;
  add(OptionKind::kFormat, "hook_format", &Options::format);
  add(OptionKind::kRounding, "stochastic_rounding", &Options::stochastic_rounding_seed,
      seed ? OptionValue(c10::str("seed ", *seed)) : OptionValue(false));
  add(OptionKind::kRounding, "error_feedback", &Options::error_feedback);
  add(OptionKind::kRounding, "exempt_one_dimensional", &Options::exempt_one_dimensional);
  add(OptionKind::kLevels, "levels", &Options::levels);
  add(OptionKind::kLevels, "node_size", &Options::node_size);
  add(OptionKind::kLink, "link_gbit", &Options::link_gbit);
  add(OptionKind::kLink, "link_us", &Options::link_us);
  add(OptionKind::kChoice, "auto_bits", &Options::auto_bits);
}

OptionValue told_group(const std::optional<int64_t>& size) {
  if (!size) {
    return std::string("node");
  }
  return size == 1 ? OptionValue(std::string("none")) : OptionValue(*size);
}

void add_local(const LocalOptions& options, std::vector<NamedOption>& named) {
  using Options = LocalOptions;
  const Namer<Options> add(options, named);
  add(OptionKind::kLocal, "outer_warmup", &Options::start);
  add(OptionKind::kLocal, "local_group", &Options::group_size, told_group(options.group_size));
  add(OptionKind::kLocal, "local_hook", &Options::hook);
}

void add_power_sgd(const PowerSgdOptions& options, std::vector<NamedOption>& named) {
  using Options = PowerSgdOptions;
  const Namer<Options> add(options, named);
  add(OptionKind::kPowerSgd, "power_sgd_rank", &Options::rank);
  add(OptionKind::kPowerSgd, "power_sgd_start", &Options::start);
  add(OptionKind::kPowerSgdOfMatrices, "power_sgd_min_rate", &Options::min_rate);
  add(OptionKind::kPowerSgd, "power_sgd_error_feedback", &Options::error_feedback);
  add(OptionKind::kPowerSgd, "power_sgd_warm_start", &Options::warm_start);
  add(OptionKind::kPowerSgdOfMatrices, "power_sgd_epsilon", &Options::epsilon);
  add(OptionKind::kPowerSgd, "power_sgd_seed", &Options::seed);
  add(OptionKind::kPowerSgdOfMatrices, "power_sgd_batch", &Options::batch);
  add(OptionKind::kPowerSgd, "power_sgd_alternate", &Options::alternate);
  add(OptionKind::kPowerSgd, "power_sgd_memory", &Options::memory);
  add(OptionKind::kPowerSgd, "power_sgd_wire", &Options::wire);
}

}  // namespace

std::string_view to_string(Levels levels) { return kLevelsNames.name_of(levels); }

Levels parse_levels(std::string_view name) { return kLevelsNames.parse(name); }

std::string text_of(const OptionValue& value) {
  struct Text {
    std::string operator()(std::monostate) const { return "none"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return c10::str(value); }
    std::string operator()(double value) const { return c10::str(value); }
    std::string operator()(const std::string& value) const { return value; }
  };
  return std::visit(Text{}, value);
}

std::vector<NamedOption> named_options(const HookOptions& options) {
  std::vector<NamedOption> named;
  add_wire(options.wire, named);
  named.push_back(
      {"channel_size", OptionKind::kChannels, value_of(options.channel_size), options.channel_size.has_value()});
  add_local(options.local, named);
  add_power_sgd(options.power_sgd, named);
  return named;
}

}  // namespace narrowcast::hooks

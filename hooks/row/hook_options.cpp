#include "hooks/row/hook_options.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <type_traits>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/common/enumerator_names.h"

namespace narrowcast::hooks {
namespace {

constexpr EnumeratorNames<Levels, 3> kLevelsNames{
    "levels", "Levels", {{{Levels::kAuto, "auto"}, {Levels::kOne, "one"}, {Levels::kTwo, "two"}}}};

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
OptionValue value_of(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? value_of(*value) : OptionValue();
  } else if constexpr (std::is_constructible_v<std::string, T>) {
    return std::string(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return std::string(to_string(value));
  }
}

// Names the options of one struct.
template <class Options>
class Namer {
 public:
  Namer(const Options& options, std::vector<NamedOption>& named) : options_(options), named_(named) {}

  template <class T>
  void operator()(OptionKind kind, const char* name, T Options::*member) const {
    (*this)(kind, name, member, &value_of<T>);
  }

  // An option whose text is not its value.
  template <class T>
  void operator()(OptionKind kind, const char* name, T Options::*member, OptionValue (*told)(const T&)) const {
    static const Options usual;
    named_.push_back({name, kind, told(options_.*member), options_.*member != usual.*member});
  }

 private:
  const Options& options_;
  std::vector<NamedOption>& named_;
};

// Resets options of the kinds that are not kept to their defaults.
class WireReset {
 public:
  WireReset(const std::function<bool(OptionKind)>& keeps, WireOptions& options) : keeps_(keeps), options_(options) {}

  template <class T, class... Told>
  void operator()(OptionKind kind, const char* /*name*/, T WireOptions::*member, const Told&...) const {
    static const WireOptions usual;
    if (!keeps_(kind)) options_.*member = usual.*member;
  }

 private:
  const std::function<bool(OptionKind)>& keeps_;
  WireOptions& options_;
};

OptionValue seed_text(const std::optional<int64_t>& seed) {
  return seed ? OptionValue(c10::str("seed ", *seed)) : OptionValue(false);
}

// Calls visit(kind, name, member[, function that makes the text]) for each of the wire options.
template <class Visit>
void visit_wire(const Visit& visit) {
  using Options = WireOptions;
  visit(OptionKind::kFormat, "hook_format", &Options::format);
  visit(OptionKind::kRounding, "stochastic_rounding", &Options::stochastic_rounding_seed, &seed_text);
  visit(OptionKind::kErrorFeedback, "error_feedback", &Options::error_feedback);
  visit(OptionKind::kExemption, "exempt_one_dimensional", &Options::exempt_one_dimensional);
  visit(OptionKind::kLevels, "levels", &Options::levels);
  visit(OptionKind::kLevels, "node_size", &Options::node_size);
  visit(OptionKind::kLink, "link_gbit", &Options::link_gbit);
  visit(OptionKind::kLink, "link_us", &Options::link_us);
  visit(OptionKind::kChoice, "auto_bits", &Options::auto_bits);
}

// The texts of LocalOptions::group_size for no value (the ranks of a node) and for 1.
constexpr std::string_view kGroupOfNode = "node";
constexpr std::string_view kGroupOfOne = "none";

OptionValue describe_group(const std::optional<int64_t>& size) {
  if (!size) {
    return std::string(kGroupOfNode);
  }
  return size == 1 ? OptionValue(std::string(kGroupOfOne)) : OptionValue(*size);
}

void add_local(const LocalOptions& options, std::vector<NamedOption>& named) {
  using Options = LocalOptions;
  const Namer<Options> add(options, named);
  add(OptionKind::kLocal, "outer_warmup", &Options::start);
  add(OptionKind::kLocal, "local_group", &Options::group_size, &describe_group);
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
    // Numbers that differ have texts that differ: ranks compare these.
    std::string operator()(double value) const {
      std::array<char, 32> digits{};
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::general);
      return {digits.data(), end.ptr};
    }
    std::string operator()(const std::string& value) const { return value; }
  };
  return std::visit(Text{}, value);
}

std::vector<NamedOption> named_options(const HookOptions& options) {
  std::vector<NamedOption> named;
  visit_wire(Namer<WireOptions>(options.wire, named));
  named.push_back(
      {"channel_size", OptionKind::kChannels, value_of(options.channel_size), options.channel_size.has_value()});
  add_local(options.local, named);
  add_power_sgd(options.power_sgd, named);
  return named;
}

std::string local_group_text(const std::optional<int64_t>& size) { return text_of(describe_group(size)); }

bool parse_local_group(std::string_view text, std::optional<int64_t>& size) {
  if (text == kGroupOfNode) {
    size.reset();
    return true;
  }
  size = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *size);
  return text == kGroupOfOne || (error == std::errc() && end == text.data() + text.size());
}

WireOptions with_only(WireOptions wire, const std::function<bool(OptionKind)>& keeps) {
  visit_wire(WireReset(keeps, wire));
  return wire;
}

bool is_set(const WireOptions& wire, OptionKind kind) {
  const std::vector<NamedOption> named = named_options({nullptr, wire});
  return std::ranges::any_of(named, [=](const NamedOption& option) { return option.kind == kind && option.is_given; });
}

void check_link(const WireOptions& wire) {
  const auto check = [](const char* name, const std::optional<double>& value, double least, double most) {
    TORCH_CHECK_VALUE(!value || (*value >= least && *value <= most), name, ": must be in ", least, "..", most,
                      ", but is ", *value);
  };
  check("link_gbit", wire.link_gbit, kLeastLinkGbit, kMostLinkGbit);
  check("link_us", wire.link_us, kLeastLinkUs, kMostLinkUs);
}

}  // namespace narrowcast::hooks

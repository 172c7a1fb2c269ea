#include <narrowcast/outer_options.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/option_values.h"
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"
#include "ops/common/enumerator_names.h"

namespace narrowcast {
namespace {

constexpr double kNesterovRate = 0.7;
constexpr double kNesterovMomentum = 0.9;

constexpr EnumeratorNames<OuterKind, 3> kOuterKindNames{
    "outer_optimizer",
    "OuterKind",
    {{{OuterKind::kAverage, "average"}, {OuterKind::kSgd, "sgd"}, {OuterKind::kNesterov, "nesterov"}}}};

void check_at_least(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, name, ": must be at least ", least, ", but is ", value);
}

void check_outer_step(const OuterOptions& options) {
  const bool averages = options.optimizer() == OuterKind::kAverage;
  TORCH_CHECK_VALUE(!averages || !options.learning_rate(), "outer_learning_rate: ", *options.learning_rate(),
                    " has no effect with the outer optimizer average");
  TORCH_CHECK_VALUE(!averages || !options.momentum(), "outer_momentum: ", *options.momentum(),
                    " has no effect with the outer optimizer average");
  const double rate = options.effective_learning_rate();
  TORCH_CHECK_VALUE(std::isfinite(rate) && rate > 0, "outer_learning_rate: must be positive, but is ", rate);
  const double momentum = options.effective_momentum();
  TORCH_CHECK_VALUE(momentum >= 0 && momentum < 1, "outer_momentum: must be in 0..1, below 1, but is ", momentum);
  TORCH_CHECK_VALUE(options.optimizer() != OuterKind::kNesterov || momentum > 0,
                    "outer_momentum: must be positive with the outer optimizer nesterov, but is 0");
}

// Steps from the exchange of one fragment to the exchange of the next.
int64_t steps_between(const OuterOptions& options) { return options.sync_every() / options.fragments(); }

void check_schedule(const OuterOptions& options) {
  check_at_least("sync_every", options.sync_every(), 1);
  check_at_least("fragments", options.fragments(), 1);
  check_at_least("overlap_steps", options.overlap_steps(), 0);
  check_at_least("outer_warmup", options.warmup_steps(), 0);
  TORCH_CHECK_VALUE(options.sync_every() % options.fragments() == 0, "sync_every: must be a multiple of fragments (",
                    options.fragments(), "), but is ", options.sync_every());
  const int64_t between = steps_between(options);
  TORCH_CHECK_VALUE(options.overlap_steps() < between, "overlap_steps: must be less than sync_every / fragments (",
                    between, "), so that only one fragment is exchanged at a time, but is ", options.overlap_steps());
  const int64_t first = options.effective_first_exchange();
  TORCH_CHECK_VALUE(first >= 1 && first <= options.sync_every(), "first_exchange: must be in 1..sync_every (",
                    options.sync_every(), "), but is ", first);
  TORCH_CHECK_VALUE(options.mix() >= 0 && options.mix() <= 1, "outer_mix: must be in 0..1, but is ", options.mix());
}

void check_wire(const hooks::WireOptions& wire) {
  hooks::check_hook_options(hooks::kAnyFormatHook, {nullptr, wire});
  TORCH_CHECK_VALUE(wire.format, "outer_format: must be given");
  TORCH_CHECK_VALUE(!wire.exempt_one_dimensional,
                    "exempt_one_dimensional: has no effect on outer exchanges, because each fragment is one array");
  const bool rounds = codec::wire::rounds(*wire.format);
  TORCH_CHECK_VALUE(rounds || !wire.error_feedback, "outer_error_feedback: has no effect with the outer format ",
                    *wire.format, ", which rounds nothing");
  TORCH_CHECK_VALUE(rounds || !wire.stochastic_rounding_seed,
                    "stochastic_rounding: has no effect with the outer format ", *wire.format,
                    ", which rounds nothing");
}

// Format and error feedback of differences have other names than those options of gradients.
constexpr const char* kOuterFormat = "outer_format";
constexpr const char* kOuterErrorFeedback = "outer_error_feedback";

// Returns no value for options that have no effect on an exchange.
std::optional<hooks::NamedOption> named_for_exchange(hooks::NamedOption option) {
  switch (option.kind) {
    case hooks::OptionKind::kFormat:
      return hooks::NamedOption{kOuterFormat, hooks::OptionKind::kLocal, option.value, option.is_given};
    case hooks::OptionKind::kErrorFeedback:
      return hooks::NamedOption{kOuterErrorFeedback, hooks::OptionKind::kLocal, option.value, option.is_given};
    case hooks::OptionKind::kRounding:
    case hooks::OptionKind::kLevels:
    case hooks::OptionKind::kLink:
      return option;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string_view to_string(OuterKind kind) { return kOuterKindNames.name_of(kind); }

OuterKind parse_outer_kind(std::string_view name) { return kOuterKindNames.parse(name); }

void OuterOptions::validate() const {
  check_schedule(*this);
  check_outer_step(*this);
  check_wire(wire());
}

double OuterOptions::effective_learning_rate() const {
  return learning_rate().value_or(optimizer() == OuterKind::kNesterov ? kNesterovRate : 1);
}

double OuterOptions::effective_momentum() const {
  return momentum().value_or(optimizer() == OuterKind::kNesterov ? kNesterovMomentum : 0);
}

int64_t OuterOptions::largest_fragment(int64_t numel) const { return (numel + fragments() - 1) / fragments(); }

std::vector<hooks::NamedOption> OuterOptions::named() const {
  static const OuterOptions usual;
  std::vector<hooks::NamedOption> named;
  const auto add = [&](const char* name, hooks::OptionValue value, bool is_given) {
    named.push_back({name, hooks::OptionKind::kLocal, std::move(value), is_given});
  };
  add("sync_every", sync_every(), sync_every() != usual.sync_every());
  add("outer_optimizer", std::string(to_string(optimizer())), optimizer() != usual.optimizer());
  add("outer_learning_rate", effective_learning_rate(), learning_rate().has_value());
  add("outer_momentum", effective_momentum(), momentum().has_value());
  add("fragments", fragments(), fragments() != usual.fragments());
  add("overlap_steps", overlap_steps(), overlap_steps() != usual.overlap_steps());
  add("outer_mix", mix(), mix() != usual.mix());
  add("outer_warmup", warmup_steps(), warmup_steps() != usual.warmup_steps());
  for (hooks::NamedOption& option : hooks::named_options({.wire = wire()})) {
    if (auto taken = named_for_exchange(std::move(option))) {
      named.push_back(*std::move(taken));
    }
  }
  return named;
}

void OuterOptions::set(const std::string& name, const hooks::OptionValue& value) {
  static const OuterOptions usual;
  const auto read = [&](auto& member, const auto& usual_member, auto... parse) {
    if (std::holds_alternative<std::monostate>(value)) {
      member = usual_member;
    } else {
      hooks::read_option(name, value, member, parse...);
    }
  };
  if (name == "sync_every") return read(sync_every_, usual.sync_every_);
  if (name == "outer_optimizer") return read(optimizer_, usual.optimizer_, &parse_outer_kind);
  if (name == "outer_learning_rate") return read(learning_rate_, usual.learning_rate_);
  if (name == "outer_momentum") return read(momentum_, usual.momentum_);
  if (name == "fragments") return read(fragments_, usual.fragments_);
  if (name == "overlap_steps") return read(overlap_steps_, usual.overlap_steps_);
  if (name == "outer_mix") return read(mix_, usual.mix_);
  if (name == "outer_warmup") return read(warmup_steps_, usual.warmup_steps_);
  if (name == "first_exchange") return read(first_exchange_, usual.first_exchange_);
  if (name == kOuterFormat) return read(wire_.format, usual.wire_.format, &parse_wire_format);
  if (name == kOuterErrorFeedback) return read(wire_.error_feedback, usual.wire_.error_feedback);
  set_wire(name, value);
}

// An option of the exchange that has the name of the hooks' option.
void OuterOptions::set_wire(const std::string& name, const hooks::OptionValue& value) {
  std::string known;
  for (const hooks::NamedOption& option : hooks::named_options({})) {
    if (const auto taken = named_for_exchange(option); taken && taken->name == name) {
      hooks::HookOptions options{.wire = wire()};
      hooks::set_option(options, name, value);
      wire_ = options.wire;
      return;
    }
  }
  for (const hooks::NamedOption& option : named()) known += option.name + ", ";
  TORCH_CHECK_VALUE(false, "unknown option '", name, "'; known: ", known, "first_exchange");
}

int64_t OuterOptions::effective_first_exchange() const { return first_exchange().value_or(steps_between(*this)); }

bool OuterOptions::sends_parameters() const { return wire().format == WireFormat::kFp32 && effective_momentum() == 0; }

std::optional<int64_t> OuterOptions::fragment_due(int64_t local_step) const {
  const int64_t since_first = local_step - effective_first_exchange();
  const int64_t between = steps_between(*this);
  if (since_first < 0 || since_first % between != 0) {
    return std::nullopt;
  }
  return since_first / between % fragments();
}

}  // namespace narrowcast

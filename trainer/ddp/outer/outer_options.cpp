#include <narrowcast/outer_options.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
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
constexpr double kSparseDecay = 0.95;

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

// Only clocks know when a round of sync_seconds ends, so nothing can be planned for a step of it.
void check_seconds(const OuterOptions& options) {
  if (!options.sync_seconds()) {
    TORCH_CHECK_VALUE(!options.clock(), "clock: has no effect without sync_seconds");
    return;
  }
  static const OuterOptions usual;
  const double seconds = *options.sync_seconds();
  TORCH_CHECK_VALUE(std::isfinite(seconds) && seconds > 0, "sync_seconds: must be positive, but is ", seconds);
  const auto refuse = [](const char* name, const auto& value, const auto& needed) {
    TORCH_CHECK_VALUE(value == needed, name, ": ", value, " has no effect with sync_seconds; leave it out");
  };
  refuse("sync_every", options.sync_every(), usual.sync_every());
  refuse("fragments", options.fragments(), usual.fragments());
  refuse("overlap_steps", options.overlap_steps(), usual.overlap_steps());
  refuse("outer_mix", options.mix(), usual.mix());
  TORCH_CHECK_VALUE(!options.first_exchange(), "first_exchange: ", *options.first_exchange(),
                    " has no effect with sync_seconds; leave it out");
}

// Messages of a quorum go straight from group to group, each in one piece.
void check_quorum_options(const OuterOptions& options) {
  if (!options.quorum()) {
    TORCH_CHECK_VALUE(!options.grace_seconds(), "outer_grace_seconds: ", *options.grace_seconds(),
                      " has no effect without outer_quorum");
    return;
  }
  check_at_least("outer_quorum", *options.quorum(), 1);
  const double grace = options.grace_seconds().value_or(0);
  TORCH_CHECK_VALUE(std::isfinite(grace) && grace >= 0, "outer_grace_seconds: must be at least 0, but is ", grace);
  TORCH_CHECK_VALUE(!options.sync_seconds(), "sync_seconds: ", *options.sync_seconds(),
                    " is not possible with outer_quorum: a round of seconds ends on all ranks at once");
  const auto refuse = [](const char* name, const auto& value, const auto& needed) {
    TORCH_CHECK_VALUE(value == needed, name, ": ", value, " is not possible with outer_quorum; leave it out");
  };
  refuse("fragments", options.fragments(), int64_t{1});
  refuse("overlap_steps", options.overlap_steps(), int64_t{0});
  refuse("outer_mix", options.mix(), 0.0);
  const hooks::WireOptions& wire = options.wire();
  const auto refuse_route = [](const char* name, bool is_given) {
    TORCH_CHECK_VALUE(!is_given, name,
                      ": has no effect with outer_quorum, whose messages go from group to group; "
                      "leave it out");
  };
  refuse_route("levels", wire.levels != Levels::kAuto);
  refuse_route("node_size", wire.node_size.has_value());
  refuse_route("link_gbit", wire.link_gbit.has_value());
  refuse_route("link_us", wire.link_us.has_value());
}

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
  TORCH_CHECK_VALUE(wire.format, "outer_format: must be given");
  TORCH_CHECK_VALUE(!codec::wire::is_sparse(*wire.format) || wire.error_feedback, "outer_format: ", *wire.format,
                    " sends only ", 0.1 * codec::wire::kept_per_mille(*wire.format),
                    "% of the elements. It needs outer_error_feedback, which adds the others to the next exchange");
  hooks::check_hook_options(hooks::kAnyFormatHook, {nullptr, wire});
  TORCH_CHECK_VALUE(!wire.exempt_one_dimensional,
                    "exempt_one_dimensional: has no effect on outer exchanges, because each fragment is one array");
  const bool rounds = codec::wire::rounds(*wire.format);
  TORCH_CHECK_VALUE(rounds || !wire.error_feedback, "outer_error_feedback: has no effect with the outer format ",
                    *wire.format, ", which rounds nothing");
  TORCH_CHECK_VALUE(rounds || !wire.stochastic_rounding_seed,
                    "stochastic_rounding: has no effect with the outer format ", *wire.format,
                    ", which rounds nothing");
}

void check_error_decay(const OuterOptions& options) {
  const double decay = options.effective_error_decay();
  TORCH_CHECK_VALUE(decay > 0 && decay <= 1, "outer_error_decay: must be above 0 and at most 1, but is ", decay);
  TORCH_CHECK_VALUE(!options.error_decay() || options.wire().error_feedback,
                    "outer_error_decay: ", *options.error_decay(), " has no effect without outer_error_feedback");
}

// A residual is the decaying sum of the differences that were not sent, as a momentum is. With both, an element would
// get a late difference several times. With outer_mix, a rank's own part is in its next
// difference, and already in its residual.
void check_sparse_steps(const OuterOptions& options) {
  const WireFormat format = *options.wire().format;
  if (!codec::wire::is_sparse(format)) {
    return;
  }
  const double momentum = options.effective_momentum();
  TORCH_CHECK_VALUE(momentum == 0, "outer_momentum: must be 0 with the outer format ", format,
                    ", in which outer_error_decay takes the place of momentum, but is ", momentum,
                    "; use the outer optimizer sgd without momentum");
  TORCH_CHECK_VALUE(options.mix() == 0, "outer_mix: must be 0 with the outer format ", format, ", but is ",
                    options.mix(), ": elements that wait to be sent would be sent twice");
}

constexpr std::string_view kSyncEvery = "sync_every";
constexpr std::string_view kFirstExchange = "first_exchange";

// The list of the options by name, except the exchange's: calls visit(name, member, parse...) for each. Format and
// error feedback of differences have other names than those options of gradients.
template <class Visit>
void visit_options(const Visit& visit) {
  visit(
      kSyncEvery, [](auto& options) -> auto& { return options.sync_every(); });
  visit(
      "sync_seconds", [](auto& options) -> auto& { return options.sync_seconds(); });
  visit(
      "outer_quorum", [](auto& options) -> auto& { return options.quorum(); });
  visit(
      "outer_grace_seconds", [](auto& options) -> auto& { return options.grace_seconds(); });
  visit(
      "outer_optimizer", [](auto& options) -> auto& { return options.optimizer(); }, &parse_outer_kind);
  visit(
      "outer_learning_rate", [](auto& options) -> auto& { return options.learning_rate(); });
  visit(
      "outer_momentum", [](auto& options) -> auto& { return options.momentum(); });
  visit(
      "fragments", [](auto& options) -> auto& { return options.fragments(); });
  visit(
      "overlap_steps", [](auto& options) -> auto& { return options.overlap_steps(); });
  visit(
      "outer_mix", [](auto& options) -> auto& { return options.mix(); });
  visit(
      "outer_warmup", [](auto& options) -> auto& { return options.warmup_steps(); });
  visit(
      "outer_format", [](auto& options) -> auto& { return options.wire().format; }, &parse_wire_format);
  visit(
      "outer_error_feedback", [](auto& options) -> auto& { return options.wire().error_feedback; });
  visit(
      "outer_error_decay", [](auto& options) -> auto& { return options.error_decay(); });
  visit(
      kFirstExchange, [](auto& options) -> auto& { return options.first_exchange(); });
}

// The options of the exchange that have the names of the hooks' options.
std::vector<hooks::NamedOption> named_of_exchange(const hooks::WireOptions& wire) {
  using enum hooks::OptionKind;
  std::vector<hooks::NamedOption> named = hooks::named_options({.wire = wire});
  std::erase_if(named, [](const hooks::NamedOption& option) {
    return option.kind != kRounding && option.kind != kLevels && option.kind != kLink && option.kind != kConnections;
  });
  return named;
}

}  // namespace

std::string_view to_string(OuterKind kind) { return kOuterKindNames.name_of(kind); }

OuterKind parse_outer_kind(std::string_view name) { return kOuterKindNames.parse(name); }

void OuterOptions::validate() const {
  check_seconds(*this);
  check_quorum_options(*this);
  check_schedule(*this);
  check_outer_step(*this);
  check_wire(wire());
  check_error_decay(*this);
  check_sparse_steps(*this);
}

double OuterOptions::effective_learning_rate() const {
  return learning_rate().value_or(optimizer() == OuterKind::kNesterov ? kNesterovRate : 1);
}

double OuterOptions::effective_momentum() const {
  return momentum().value_or(optimizer() == OuterKind::kNesterov ? kNesterovMomentum : 0);
}

double OuterOptions::effective_error_decay() const {
  return error_decay().value_or(wire().format && codec::wire::is_sparse(*wire().format) ? kSparseDecay : 1);
}

int64_t OuterOptions::largest_fragment(int64_t numel) const { return (numel + fragments() - 1) / fragments(); }

std::vector<hooks::NamedOption> OuterOptions::named() const {
  static const OuterOptions usual;
  const OuterOptions filled_in = OuterOptions(*this)
                                     .learning_rate(effective_learning_rate())
                                     .momentum(effective_momentum())
                                     .error_decay(effective_error_decay());
  std::vector<hooks::NamedOption> named;
  visit_options([&](std::string_view name, const auto& member, auto... /*parse*/) {
    if (name == kFirstExchange) return;
    const bool has_value = name != kSyncEvery || !sync_seconds();
    named.push_back({std::string(name), hooks::OptionKind::kLocal,
                     has_value ? hooks::value_of(member(filled_in)) : hooks::OptionValue(),
                     member(*this) != member(usual)});
  });
  std::ranges::move(named_of_exchange(wire()), std::back_inserter(named));
  return named;
}

void OuterOptions::set(const std::string& name, const hooks::OptionValue& value) {
  static const OuterOptions usual;
  bool found = false;
  visit_options([&](std::string_view other, const auto& member, auto... parse) {
    if (name != other) return;
    found = true;
    hooks::set_member(value, member(*this), member(usual),
                      [&](auto& read) { hooks::read_option(name, value, read, parse...); });
  });
  if (!found) set_of_exchange(name, value);
}

void OuterOptions::set_of_exchange(const std::string& name, const hooks::OptionValue& value) {
  const std::vector<hooks::NamedOption> of_exchange = named_of_exchange({});
  if (std::ranges::find(of_exchange, name, &hooks::NamedOption::name) == of_exchange.end()) {
    std::string known;
    for (const hooks::NamedOption& option : named()) known += option.name + ", ";
    TORCH_CHECK_VALUE(false, "unknown option '", name, "'; known: ", known, kFirstExchange);
  }
  hooks::HookOptions options{.wire = wire()};
  hooks::set_option(options, name, value);
  wire(options.wire);
}

int64_t OuterOptions::effective_first_exchange() const { return first_exchange().value_or(steps_between(*this)); }

bool OuterOptions::sends_parameters() const {
  return wire().format == WireFormat::kFp32 && effective_momentum() == 0 && !quorum();
}

std::optional<int64_t> OuterOptions::fragment_due(int64_t local_step) const {
  const int64_t since_first = local_step - effective_first_exchange();
  const int64_t between = steps_between(*this);
  if (sync_seconds() || quorum() || since_first < 0 || since_first % between != 0) {
    return std::nullopt;
  }
  return since_first / between % fragments();
}

}  // namespace narrowcast

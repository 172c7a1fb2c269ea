#include "tests/trainer/ddp/resume/drawn_training.h"

#include <functional>
#include <sstream>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"

namespace narrowcast::testing {
namespace {

using hooks::HookRow;
using hooks::OptionKind;

WireFormat draw_format(Draws& draws, bool (*is_possible)(WireFormat)) {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, std::not_fn(is_possible));
  return draws.one_of(formats);
}

bool is_dense(WireFormat format) { return !codec::wire::is_sparse(format); }

// In a third of the draws a sparse format, whose options must be those that it takes.
void draw_sparse(Draws& draws, hooks::WireOptions& wire) {
  if (!draws.once_in(3)) return;
  wire.format = draw_format(draws, codec::wire::is_sparse);
  wire.error_feedback = true;
  wire.stochastic_rounding_seed.reset();
}

// In most draws each rank is a node, because nothing is rounded within a node. Two levels need two ranks on one of the
// nodes.
void draw_levels(Draws& draws, int64_t world_size, hooks::WireOptions& wire) {
  switch (draws.in(0, 5)) {
    case 0:
      return;
    case 1:
      wire.levels = hooks::Levels::kOne;
      return;
    case 2:
      wire.node_size = draws.in(2, 3);
      wire.levels = world_size > 1 && draws.once_in(2) ? hooks::Levels::kTwo : hooks::Levels::kAuto;
      return;
    default:
      wire.node_size = 1;
  }
}

// Few trials measure a link, because measuring takes most of their time. A slow link without latency selects two hops.
void draw_link(Draws& draws, hooks::WireOptions& wire) {
  if (draws.once_in(10)) return;
  wire.link_gbit = draws.one_of<double>({1e-4, 1, 100});
  wire.link_us = draws.one_of<double>({1e-3, 50});
}

hooks::LocalOptions draw_local(Draws& draws) {
  std::vector<std::string> inner;
  for (const HookRow& row : hooks::hook_rows()) {
    if (row.make && row.keeps_replicas_equal && !row.approximates()) inner.push_back(row.name);
  }
  hooks::LocalOptions local{.start = draws.in(0, 3), .hook = draws.one_of(inner)};
  if (!draws.once_in(4)) local.group_size = draws.in(1, 3);
  return local;
}

hooks::PowerSgdOptions draw_power_sgd(Draws& draws, const HookRow& row) {
  hooks::PowerSgdOptions options;
  options.rank = draws.one_of<std::optional<int64_t>>({std::nullopt, 1, 2, 4});
  options.start = draws.in(0, 3);
  options.error_feedback = !draws.once_in(4);
  options.warm_start = !draws.once_in(4);
  options.seed = draws.in(0, 2);
  options.alternate = options.warm_start && draws.once_in(3);
  options.memory = draws.once_in(3) ? hooks::PowerSgdMemory::kAveraged : hooks::PowerSgdMemory::kLocal;
  options.wire = draws.once_in(2) ? draw_format(draws, is_dense) : WireFormat::kFp32;
  if (row.takes(OptionKind::kPowerSgdOfMatrices)) {
    options.min_rate = draws.one_of<double>({0.5, 2});
    options.batch = draws.once_in(3);
    options.epsilon = options.memory == hooks::PowerSgdMemory::kLocal && draws.once_in(3) ? 1e-8 : 0;
  }
  return options;
}

hooks::HookOptions draw_hook_options(Draws& draws, const HookRow& row, int64_t world_size) {
  hooks::HookOptions options;
  hooks::WireOptions& wire = options.wire;
  if (row.takes(OptionKind::kFormat) && !draws.once_in(4)) wire.format = draw_format(draws, is_dense);
  if (row.takes(OptionKind::kRounding) && draws.once_in(3)) wire.stochastic_rounding_seed = draws.in(0, 9);
  wire.error_feedback = row.takes(OptionKind::kErrorFeedback) && !draws.once_in(3);
  if (row.takes(OptionKind::kFormat)) draw_sparse(draws, wire);
  wire.exempt_one_dimensional = row.takes(OptionKind::kExemption) && draws.once_in(4);
  if (row.takes(OptionKind::kLevels)) draw_levels(draws, world_size, wire);
  if (row.takes(OptionKind::kLink)) draw_link(draws, wire);
  if (row.takes(OptionKind::kChoice) && draws.once_in(2)) {
    wire.auto_bits = draws.in(hooks::kFewestAutoBits, hooks::kDefaultAutoBits);
  }
  if (row.takes(OptionKind::kChannels) && draws.once_in(2)) options.channel_size = draws.one_of<int64_t>({1, 7, 128});
  if (row.takes(OptionKind::kLocal)) options.local = draw_local(draws);
  if (row.takes(OptionKind::kPowerSgd)) options.power_sgd = draw_power_sgd(draws, row);
  return options;
}

// Buckets have one parameter each, a few, or all.
void draw_reducer(Draws& draws, DrawnMode mode, DdpOptions& ddp) {
  const double cap = draws.one_of<double>({1e-5, 1e-3, 4e-3, 25});
  ddp.bucket_cap_mb(cap);
  if (draws.once_in(3)) ddp.first_bucket_mb(cap / 2);
  ddp.static_graph(mode == DrawnMode::kStaticGraph);
  ddp.find_unused_parameters(mode == DrawnMode::kUnusedParameters);
  ddp.gradient_as_bucket_view(draws.once_in(3));
  ddp.broadcast_buffers(!draws.once_in(4));
  ddp.init_sync(!draws.once_in(4));
}

OuterOptions draw_outer(Draws& draws, int64_t warmup_steps) {
  OuterOptions outer;
  const int64_t between = draws.in(1, 3);
  outer.fragments(draws.in(1, 3));
  outer.sync_every(between * outer.fragments());
  outer.overlap_steps(draws.in(0, between - 1));
  outer.optimizer(draws.one_of<OuterKind>({OuterKind::kAverage, OuterKind::kSgd, OuterKind::kNesterov}));
  outer.mix(draws.once_in(2) ? 0.5 : 0);
  outer.warmup_steps(warmup_steps);
  if (draws.once_in(3)) outer.first_exchange(draws.in(1, outer.sync_every()));
  hooks::WireOptions wire{.format = draw_format(draws, is_dense), .node_size = 1};
  const bool rounds = codec::wire::rounds(*wire.format);
  wire.error_feedback = rounds && draws.once_in(2);
  if (rounds && draws.once_in(3)) wire.stochastic_rounding_seed = draws.in(0, 9);
  draw_sparse(draws, wire);
  if (codec::wire::is_sparse(*wire.format)) {
    outer.optimizer(draws.one_of<OuterKind>({OuterKind::kAverage, OuterKind::kSgd})).mix(0);
  }
  draw_link(draws, wire);
  outer.wire(wire);
  return outer;
}

// PowerSGD sends float64 in one level only; an outer optimizer sends no float64.
std::vector<at::ScalarType> dtypes_of(const HookRow& row, const DrawnTraining& training) {
  std::vector<at::ScalarType> dtypes = {at::kFloat, at::kHalf, at::kBFloat16};
  const hooks::WireOptions& wire = training.ddp.wire();
  const bool asks_for_levels = wire.levels == hooks::Levels::kTwo || wire.node_size.value_or(1) > 1;
  const bool has_float64 = !training.outer && !(row.takes(OptionKind::kPowerSgd) && asks_for_levels);
  if (has_float64) dtypes.push_back(at::kDouble);
  return dtypes;
}

}  // namespace

uint64_t drawn_pairs() { return hooks::comm_hook_names().size() * kDrawnModes; }

DrawnTraining draw_training(uint64_t seed) {
  Draws draws(seed);
  DrawnTraining training;
  training.seed = seed;
  training.world_size = draws.in(seed < drawn_pairs() ? 2 : 1, 4);
  const std::vector<std::string> names = hooks::comm_hook_names();
  const HookRow& row = hooks::hook_row(names[seed % names.size()]);
  training.mode = static_cast<DrawnMode>(seed / names.size() % kDrawnModes);
  training.ddp.hook(row.name).hook_options(draw_hook_options(draws, row, training.world_size));
  draw_reducer(draws, training.mode, training.ddp);
  if (row.averages_in_groups && draws.once_in(2)) training.outer = draw_outer(draws, training.ddp.local().start);
  training.net = draw_net(draws, {.optional = training.ddp.find_unused_parameters(),
                                  .unused = training.ddp.find_unused_parameters() || training.ddp.static_graph(),
                                  .dtypes = dtypes_of(row, training)});
  training.ranks_differ = draws.once_in(2);
  training.micro_batches = draws.once_in(3) ? draws.in(2, 3) : 1;
  training.rescales = draws.once_in(3);
  training.evaluates = draws.once_in(3);
  training.steps_before = draws.in(1, 5);
  training.steps_after = draws.in(1, 4);
  return training;
}

std::string text_of(const DrawnTraining& training) {
  std::ostringstream text;
  const DdpOptions& ddp = training.ddp;
  text << "seed " << training.seed << ": " << training.world_size << " ranks, hook " << ddp.hook();
  const auto add = [&](const std::vector<hooks::NamedOption>& options) {
    for (const hooks::NamedOption& option : options) {
      if (option.is_given) text << " " << option.name << "=" << hooks::text_of(option.value);
    }
  };
  add(hooks::named_options(ddp.hook_options()));
  text << ", bucket_cap_mb=" << ddp.bucket_cap_mb().value() << " first_bucket_bytes=" << ddp.first_bucket_bytes_cap()
       << (ddp.static_graph() ? " static_graph" : "") << (ddp.find_unused_parameters() ? " find_unused_parameters" : "")
       << (ddp.gradient_as_bucket_view() ? " gradient_as_bucket_view" : "")
       << (ddp.broadcast_buffers() ? "" : " no broadcast_buffers") << (ddp.init_sync() ? "" : " no init_sync");
  if (training.outer) {
    text << ", outer steps:";
    for (const hooks::NamedOption& option : training.outer->named()) {
      text << " " << option.name << "=" << hooks::text_of(option.value);
    }
  }
  text << "; " << text_of(training.net) << (training.ranks_differ ? ", ranks differ" : "") << "; "
       << training.micro_batches << " micro-batches" << (training.rescales ? ", rescales" : "")
       << (training.evaluates ? ", evaluates" : "") << "; " << training.steps_before << " steps before, "
       << training.steps_after << " after";
  return text.str();
}

}  // namespace narrowcast::testing

#include "hooks/power_sgd/power_sgd.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <narrowcast/errors.h>
#include <narrowcast/wire_format.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/row/levels.h"
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/common/enumerator_names.h"

namespace narrowcast::hooks {
namespace {

using collectives::CompressionPlan;
using collectives::PowerSgdJob;
using collectives::SentArrays;

constexpr const char* kIterations = "iterations";
constexpr const char* kDraws = "draws";
constexpr const char* kRank = "rank";
constexpr const char* kAlternates = "alternates";
constexpr const char* kBatched = "batched";

constexpr EnumeratorNames<PowerSgdMemory, 2> kMemoryNames{
    "power_sgd_memory",
    "PowerSgdMemory",
    {{{PowerSgdMemory::kLocal, "local"}, {PowerSgdMemory::kAveraged, "averaged"}}}};

collectives::SeedDraws draws_of(const PowerSgdOptions& options, int64_t count = 0) {
  return collectives::SeedDraws(static_cast<uint32_t>(options.seed), count);
}

std::vector<collectives::ShapedRange> shaped_ranges(const c10d::GradBucket& bucket) {
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  const std::vector<at::Tensor> gradients = bucket.getGradients();
  const ParameterRanges ranges = parameter_ranges(bucket);
  std::vector<collectives::ShapedRange> shaped;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const int64_t begin = gradients[i].storage_offset() - bucket.getBuffer().storage_offset();
    shaped.push_back(parameters.empty()
                         ? collectives::ShapedRange{{begin, gradients[i].numel()}, gradients[i].sizes().vec()}
                         : collectives::ShapedRange{ranges[i].range, real_sizes(parameters[i])});
  }
  return shaped;
}

// Checks an entry that saved state of the first versions lacks; if it is missing, any value is accepted.
void check_same(const HookState& state, const char* name, int64_t own) {
  NARROWCAST_CHECK_INPUT(!state.contains(name) || int_of(state, name) == own, "the hook's state has ", name, " ",
                         int_of(state, name), ", but the hook has ", own);
}

void check_ranges(const PowerSgdOptions& options) {
  TORCH_CHECK_VALUE(options.rank.value() >= 1, "power_sgd_rank: must be at least 1, but is ", *options.rank);
  TORCH_CHECK_VALUE(options.start >= 0, "power_sgd_start: must not be negative, but is ", options.start);
  TORCH_CHECK_VALUE(std::isfinite(options.min_rate) && options.min_rate > 0,
                    "power_sgd_min_rate: must be positive, but is ", options.min_rate);
  TORCH_CHECK_VALUE(std::isfinite(options.epsilon) && options.epsilon >= 0,
                    "power_sgd_epsilon: must not be negative, but is ", options.epsilon);
  constexpr int64_t kGreatestSeed = std::numeric_limits<uint32_t>::max();
  TORCH_CHECK_VALUE(options.seed >= 0 && options.seed <= kGreatestSeed, "power_sgd_seed: must be in 0..", kGreatestSeed,
                    ", but is ", options.seed);
}

// Most bytes that a rank sends to all-reduce `numel` elements as one array. If the options do not give the link, its
// default LinkCost is used, because it is measured only when a hook is made.
int64_t bytes_of_exchange(int64_t numel, int64_t element_size, const HookOptions& options,
                          const node::NodeLayout& layout) {
  if (element_size == sizeof(double)) {
    return (layout.world_size() - 1) * numel * element_size;
  }
  const int64_t nodes = layout.nodes();
  const int64_t segment = collectives::largest_segment(layout, numel);
  const WireFormat format = options.power_sgd.wire;
  const int64_t bytes = encoded_size(segment, format);
  const collectives::LinkCost link = with_given_link({}, options.wire, layout);
  const bool in_two = collectives::choose_route(segment, nodes, format, link) == collectives::Route::kTwoShot;
  return in_two ? ring_all_reduce_bytes(bytes, nodes) : (nodes - 1) * bytes;
}

// Plan if the shapes of parameters matter.
CompressionPlan plan_of_all(const GradientSizes& gradients, const collectives::CompressionOptions& options) {
  std::vector<collectives::ShapedRange> ranges;
  int64_t begin = 0;
  for (const std::vector<int64_t>& sizes : gradients.shapes) {
    ranges.push_back({{begin, c10::multiply_integers(sizes)}, sizes});
    begin += ranges.back().range.numel;
  }
  return collectives::plan_by_layer(gradients.numel, ranges, options);
}

// Plan as if all gradients were in one bucket.
CompressionPlan plan_of_row(const HookRow& row, const GradientSizes& gradients, const PowerSgdOptions& options) {
  const int64_t rank = options.rank.value();
  return row.compresses_buckets() ? collectives::plan_of_square(gradients.numel, rank)
                                  : plan_of_all(gradients, {rank, options.min_rate, options.batch});
}

SentArrays arrays_of_row(const HookRow& row, const GradientSizes& gradients, const PowerSgdOptions& options) {
  return collectives::sent_arrays(
      {.plan = plan_of_row(row, gradients, options), .alternates = options.alternate, .format = options.wire});
}

// Bytes of a step that compresses.
int64_t bytes_of_row(const HookRow& row, const GradientSizes& gradients, const node::NodeLayout& layout,
                     const HookOptions& options) {
  const SentArrays sent = arrays_of_row(row, gradients, options.power_sgd);
  const auto bytes = [&](int64_t numel) { return bytes_of_exchange(numel, gradients.element_size, options, layout); };
  const int64_t with_p = sent.with_p.numel();
  const int64_t with_q = sent.with_q.numel();
  return options.power_sgd.alternate ? bytes(std::max(with_p, with_q)) : bytes(with_p) + bytes(with_q);
}

// Terms if the rank of the approximation is the rank of the matrix, so that only rounding errors remain. Each element
// of a product with r orthonormal columns is off by at most r u times the norm of its column. That happens twice, and
// as much is added for the columns themselves. r is at most the rank of the matrix, and that at most sqrt(n) for n
// elements.
ErrorTerms terms_of_whole_rank(const SentBucket& bucket, const node::NodeLayout& layout,
                               const HookOptions& /*options*/) {
  ErrorTerms terms = float32_terms(bucket, layout.world_size());
  const at::Tensor values = bucket.gradients.to(at::kDouble);
  const double rank = std::ceil(std::sqrt(static_cast<double>(values.numel())));
  const double share = 4 * rank * std::ldexp(1, -24) / static_cast<double>(layout.world_size());
  terms.float32 += values.norm() * share;
  return terms;
}

// Bytes of a bucket's message; if steps alternate, the average of two steps.
int64_t bytes_of_message(const collectives::PowerSgdJobOptions& job) {
  const auto bytes = [&](int64_t numel) {
    return job.bucket_dtype == at::kDouble ? numel * static_cast<int64_t>(sizeof(double))
                                           : encoded_size(numel, job.format);
  };
  const SentArrays sent = collectives::sent_arrays(job);
  const int64_t both = bytes(sent.with_p.numel()) + bytes(sent.with_q.numel());
  return job.alternates ? (both + 1) / 2 : both;
}

HookRow row_of(std::string name, int64_t rank, Approximated approximated) {
  HookRow row;
  row.name = std::move(name);
  row.error_terms = terms_of_whole_rank;
  row.approximated = approximated;
  row.options = {OptionKind::kLevels, OptionKind::kLink, OptionKind::kConnections, OptionKind::kPowerSgd};
  if (approximated == Approximated::kMatrices) {
    row.options.insert(OptionKind::kPowerSgdOfMatrices);
  }
  row.power_sgd_rank = rank;
  row.payload_bytes = [row](const GradientSizes& gradients, const node::NodeLayout& layout,
                            const HookOptions& options) { return bytes_of_row(row, gradients, layout, options); };
  row.staged_numel = [row](const GradientSizes& gradients, const HookOptions& options) {
    const SentArrays sent = arrays_of_row(row, gradients, options.power_sgd);
    const int64_t with_p = sent.with_p.numel();
    const int64_t with_q = sent.with_q.numel();
    return options.power_sgd.alternate ? std::max(with_p, with_q) : with_p + with_q;
  };
  row.make = [](const HookRow& row, const HookOptions& options) {
    return std::make_unique<PowerSgdHook>(row, options);
  };
  return row;
}

}  // namespace

PowerSgdHook::PowerSgdHook(const HookRow& row, const HookOptions& options)
    : TableHook(row),
      options_(options),
      nodes_(find_hook_nodes(options)),
      link_(options, nodes_->layout),
      engine_(options),
      memory_(std::make_shared<collectives::PowerSgdJobMemory>(draws_of(options.power_sgd))),
      states_({.keeps_residual = options.power_sgd.error_feedback,
               .alternates = options.power_sgd.alternate,
               .batched = row.compresses_buckets(),
               .rank = rank(),
               .world_size = options.process_group->getSize()}),
      groups_(make_stream_groups(options, nodes_->layout)) {}

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  check_bucket(name(), bucket, options_.device);
  TORCH_CHECK_VALUE(bucket.getBuffer().scalar_type() != at::kDouble || !asks_for_two_levels(options_.wire), name(),
                    ": float64 gradients support only one level, but levels or node_size require two");
  const bool compresses = iterations_ >= options_.power_sgd.start;
  iterations_ += bucket.isLast() ? 1 : 0;
  if (!compresses) {
    return average(bucket);
  }
  return bucket.getBuffer().is_cpu() ? compress_on_engine(bucket) : compress_on_stream(bucket);
}

// Like PyTorch's allreduce_hook.
c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::average(const c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  buffer.div_(options_.process_group->getSize());
  const auto bytes = static_cast<int64_t>(buffer.nbytes());
  count_exchange(bucket,
                 {.payload = ring_all_reduce_bytes(bytes, options_.process_group->getSize()), .message = bytes});
  return all_reduce_then(options_.process_group, buffer, std::string(name()), [buffer] { return buffer; });
}

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::compress_on_engine(const c10d::GradBucket& bucket) {
  Scratch& scratch = scratch_.get(bucket, [] { return Scratch(); });
  scratch.last.wait();
  const auto [plan, state] = state_of(bucket);
  if (scratch.job == nullptr || scratch.job->state() != state) {
    collectives::PowerSgdJobOptions job = job_options(bucket, plan);
    scratch.message_bytes = bytes_of_message(job);
    scratch.job = std::make_shared<PowerSgdJob>(std::move(job), state, memory_);
  }
  scratch.job->set_bucket(bucket.getBuffer());
  count_exchange(bucket, {.payload = scratch.job->payload_bytes(), .message = scratch.message_bytes});
  return scratch.last.set(engine_.get().submit(scratch.job));
}

// All kept tensors are created and used on the hook's stream.
c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::compress_on_stream(const c10d::GradBucket& bucket) {
  return stream_.run(bucket.getBuffer(), [&] {
    const auto [plan, state] = state_of(bucket);
    StreamScratch& scratch = stream_scratch_.get(bucket, [] { return StreamScratch(); });
    if (scratch.stream == nullptr || scratch.stream->state() != state) {
      collectives::PowerSgdJobOptions job = job_options(bucket, plan);
      scratch.message_bytes = bytes_of_message(job);
      scratch.stream =
          std::make_unique<collectives::PowerSgdStream>(collectives::StreamRanks{options_.process_group, groups_},
                                                        std::move(job), bucket.getBuffer().device(), state, memory_);
    }
    count_exchange(bucket, {.payload = scratch.stream->payload_bytes(), .message = scratch.message_bytes});
    scratch.stream->enqueue(bucket.getBuffer());
    return bucket.getBuffer();
  });
}

PowerSgdStates::BucketState PowerSgdHook::state_of(const c10d::GradBucket& bucket) {
  const auto plan = [&] {
    const int64_t numel = bucket.getBuffer().numel();
    const PowerSgdOptions& options = options_.power_sgd;
    return row().compresses_buckets()
               ? collectives::plan_of_square(numel, rank())
               : collectives::plan_by_layer(numel, shaped_ranges(bucket), {rank(), options.min_rate, options.batch});
  };
  return states_.state_of(bucket, parameter_ranges(bucket),
                          collectives::arithmetic_dtype(bucket.getBuffer().scalar_type()), plan);
}

collectives::PowerSgdJobOptions PowerSgdHook::job_options(const c10d::GradBucket& bucket,
                                                          const CompressionPlan& plan) const {
  const PowerSgdOptions& options = options_.power_sgd;
  return {.name = c10::str(name(), " of bucket ", bucket.getIndex()),
          .rank = options_.process_group->getRank(),
          .world_size = options_.process_group->getSize(),
          .bucket_dtype = bucket.getBuffer().scalar_type(),
          .plan = plan,
          .epsilon = row().compresses_buckets() ? 0 : options.epsilon,
          .averaged_memory = options.memory == PowerSgdMemory::kAveraged,
          .warm_start = options.warm_start,
          .alternates = options.alternate,
          .format = options.wire,
          .link = link_.cost(),
          .nodes = nodes_};
}

HookState PowerSgdHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = states_.state(parameters);
  state.merge(CommHook::state(parameters));
  link_.add_to(state);
  state.emplace(kIterations, int_tensor(iterations_));
  state.emplace(kDraws, int_tensor(memory_->draws.count()));
  state.emplace(kRank, int_tensor(rank()));
  state.emplace(kAlternates, int_tensor(options_.power_sgd.alternate ? 1 : 0));
  state.emplace(kBatched, int_tensor(row().compresses_buckets() ? 1 : 0));
  return state;
}

void PowerSgdHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  const HookState& own = saved.own();
  NARROWCAST_CHECK_INPUT(int_of(own, kRank) == rank(), "the hook's state has rank ", int_of(own, kRank),
                         ", but the hook has rank ", rank());
  check_same(own, kAlternates, options_.power_sgd.alternate ? 1 : 0);
  check_same(own, kBatched, row().compresses_buckets() ? 1 : 0);
  const int64_t draws = int_of(own, kDraws);
  iterations_ = int_of(own, kIterations);
  NARROWCAST_CHECK_INPUT(draws >= 0 && iterations_ >= 0, "the hook's state counts ", iterations_, " iterations and ",
                         draws, " draws");
  memory_ = std::make_shared<collectives::PowerSgdJobMemory>(draws_of(options_.power_sgd, draws));
  states_.load_state(saved, parameters);
  link_.resume(saved);
}

void PowerSgdHook::rescale_state(double factor) {
  const at::Tensor any = states_.any_residual();
  if (!any.defined()) {
    states_.rescale(factor);  // Loaded state of buckets that have not come yet is on the CPU.
    return;
  }
  stream_.run(any, [&] {
    states_.rescale(factor);
    return any;
  });
}

void check_power_sgd(const PowerSgdOptions& options) {
  check_ranges(options);
  TORCH_CHECK_VALUE(
      !options.alternate || options.warm_start,
      "power_sgd_alternate: needs power_sgd_warm_start, because each step starts with the factor of the previous step");
  TORCH_CHECK_VALUE(!codec::wire::is_sparse(options.wire), "power_sgd_wire: ", options.wire,
                    " would drop most elements of the factors, which have no error feedback");
  const int64_t rank = options.rank.value();
  TORCH_CHECK_VALUE(options.epsilon == 0 || options.memory == PowerSgdMemory::kLocal || rank < collectives::kQrRank,
                    "power_sgd_epsilon: ", options.epsilon, " has no effect with power_sgd_memory averaged and rank ",
                    rank, ": from rank ", collectives::kQrRank,
                    " on, a QR decomposition makes the columns orthonormal");
}

std::vector<HookRow> power_sgd_rows() {
  return {row_of("power_sgd", 1, Approximated::kMatrices), row_of("power_sgd_rank2", 2, Approximated::kMatrices),
          row_of("batched_power_sgd", 1, Approximated::kBuckets),
          row_of("batched_power_sgd_rank2", 2, Approximated::kBuckets)};
}

std::string_view to_string(PowerSgdMemory memory) { return kMemoryNames.name_of(memory); }

PowerSgdMemory parse_power_sgd_memory(std::string_view name) { return kMemoryNames.parse(name); }

}  // namespace narrowcast::hooks

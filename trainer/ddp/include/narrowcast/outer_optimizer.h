// Training with few exchanges: ranks take local steps and exchange parameters only every `sync_every` steps.
//
// One class for periodic averaging, post-local SGD, local SGD, DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (arXiv
// 2501.18512): they differ in OuterOptions only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// State from which one rank resumes. `replica` is equal on all ranks:
//   - steps, exchanges, lost_exchanges, replicas_are_equal: int64. With sync_seconds, steps is the number at the end of
//     the last round.
//   - reference: float32 [elements], after the warm-up
//   - momentum: float32 [elements], after the warm-up, if there is momentum
//   - mean: float32 [elements of the fragment], while an exchange is under way
//   - fragment, joined_at: int64, while an exchange is under way
// `rank` is the state of the exchange (CommHook::state), including residuals. The residual of fragment I is
// "residual.fragment.I". With sync_seconds, round_steps (int64) and round_seconds (float64, 0-dimensional) are the
// rank's part in the round that has not ended. A state that is saved holds this rank only, as ReducerState::hook.
struct OuterState {
  hooks::HookState replica;
  hooks::FormerRanks rank;
  // Set before resuming: whether ranks that averaged their gradients together, and so were equal, may now be in
  // different groups (CommHook::groups).
  bool groups_differ = false;
};

class QuorumRounds;
class RoundClock;
struct EndedRound;

// Wraps an optimizer and calls its step:
//
//   OuterOptimizer outer(adamw, group, OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov));
//   loss_of(model->forward(inputs), targets).backward();  // nothing is sent
//   outer.step();                                         // every 30th step exchanges parameters
//   ...
//   outer.finish();                                       // all ranks take the outer parameters
//
// The outer parameters are a float32 reference x, the same on all ranks. With H = sync_every, P = fragments and tau =
// overlap_steps, fragment p = 0..P-1 is exchanged by default after (p + 1) H / P steps and then every H steps:
//
//   - issued: each rank takes x - its current parameters. The group's engine computes the mean over ranks, in the wire
//     format, while the rank continues to compute (on a GPU with kernels on a separate stream).
//   - joined: tau steps later the rank waits for the mean. All ranks have the same mean D and take the same outer step
//     (OuterKind) from x with it. Then a rank's parameters become mix * own + (1 - mix) * x.
//
// If a mean is not finite, the exchange is lost: x is unchanged, and all ranks set the fragment to x.
//
// With OuterOptions::sync_seconds, slow and fast ranks never wait for each other for longer than a step of the slowest:
//
//   while (outer.steps() < 1000) {
//     ...;           // the batch and the learning rate of step outer.steps() + 1
//     outer.step();  // may end a round: then all ranks have the same number of steps
//   }
//   outer.finish();
//
// A round ends on a rank after its first step at whose end sync_seconds have passed since the last round. Rank r has
// taken n_r steps in it, and D is the sum of n_r (x - parameters of r) over the sum of n_r. The differences are scaled
// before they are encoded, so a residual belongs to the mean and not to a rank's steps. If all n_r are equal, nothing
// is scaled, and the bits are as with sync_every. All ranks continue with the step number of the fastest rank.
//
// A DistributedDataParallel over the same ranks agrees on its buckets in the first two steps of a process. So these
// must be steps of all ranks: hold_round before the first one, settle_buckets after the backward pass of each, and
// release_round after the second backward pass. Warm-up steps are steps of all ranks anyway.
//
// With OuterOptions::quorum, slow groups of ranks do not stop the others. Each group sends its difference to all
// others. D is the mean of the differences of the groups that take part in a round, weighted by the inner steps of
// their ranks. A group that is late for a round takes the same outer step when it comes, and moves its own parameters
// by as much as the reference: so what it has learnt stays in its difference, and is in the next round. As above, all
// ranks have the same number of steps and the same reference after the same round. But a step may end several rounds on
// a late rank.
//
// All these operations are elementwise. So fragments are consecutive, equal parts of the parameters in the order of the
// optimizer's groups, and a border may lie within a parameter. The optimizer's state (Adam's moments) and buffers stay
// local to a rank. All ranks make the same calls in the same order, from one thread each.
//
// Memory: 4 bytes per parameter for x, 4 with momentum, and 4 per element of the largest fragment. Error feedback needs
// the memory that WireOptions::error_feedback states, as if the parameters were gradients. With a quorum, a group also
// keeps one message of each group, at most 256 MiB of messages that follow, 4 bytes per parameter while it is late, and
// its own messages until all groups have received them. At 1 GiB of these it waits for the slowest receiver.
class NARROWCAST_EXPORT OuterOptimizer {
 public:
  // A collective. `inner`, which outlives this, has all parameters; parameters that require no gradient are not
  // changed. They are equal on all ranks, as after DistributedDataParallel's constructor, and stay on their device.
  // Throws c10::DistBackendError if a peer fails, c10::ValueError for a null group, and c10::ValueError on all ranks
  //   - as OuterOptions::validate does, for the options of any rank;
  //   - for no parameters, or more fragments than elements;
  //   - for parameters that are not float32, float16 or bfloat16, are on several devices, have holes in memory, or are
  //     shared by ranks (ShardOptions::share_parameters);
  //   - if options, groups, or sizes, dtypes or values of parameters differ between ranks.
  // `groups`: for each rank, a number that identifies the ranks with which it averages its gradients in each step
  // (CommHook::groups); by default it is alone. With sync_seconds, the clock of a group's first rank decides for all of
  // its ranks, which it tells after each step. With a quorum, the first rank exchanges messages for them. Otherwise
  // `groups` has no effect.
  OuterOptimizer(torch::optim::Optimizer& inner, ProcessGroupPtr group, const OuterOptions& options,
                 const std::vector<int64_t>& groups = {});
  // Waits for the exchange that is under way, so that the group remains usable; not while an exception passes.
  ~OuterOptimizer();
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;

  // A collective: a step of the wrapped optimizer, then the exchanges that are due. Throws c10::DistBackendError if a
  // peer fails. After the last step of the warm-up it throws c10::ValueError on all ranks if their parameters are not
  // equal. So it does if ranks share parameters by now (ShardOptions::share_parameters).
  void step();

  // Makes the gradients of the wrapped optimizer's parameters undefined.
  void zero_grad() { inner_.zero_grad(); }

  // A collective, called instead of step() on a rank that skips the optimizer's step, for instance because a gradient
  // is not finite. Other ranks may call step().
  void skip_step();

  // A collective: joins the exchange that is under way, and all ranks take the outer parameters. Local steps that a
  // rank has taken since a fragment was last issued are lost in it. So call it after a multiple of sync_every steps
  // since the warm-up. With sync_seconds no step is lost, as it begins with end_round. With a quorum none is lost
  // either: it waits for all ranks, and averages all differences that no round has averaged yet.
  void finish();

  // Steps so far, taken and skipped, including the warm-up. Equal on all ranks if steps_are_common(). With sync_seconds
  // a rank that has taken fewer steps in a round than another one jumps to the other's number when the round ends. With
  // a quorum, each round counts sync_every steps, and the number is equal on all ranks after the same round.
  int64_t steps() const { return steps_; }
  // False from a rank's first step in a round of sync_seconds, or of a quorum, to the end of the round. Else true.
  bool steps_are_common() const { return steps_ == common_steps_; }

  // A collective: with sync_seconds, ends the round although its time is not over. Waits for the other ranks to end
  // theirs, in step or by this call. For a rank that takes no more steps. Without sync_seconds, in the warm-up and if
  // steps_are_common(), it does nothing.
  void end_round();

  // With sync_seconds: no round ends by time between these calls. All ranks make them after equal numbers of steps.
  void hold_round() { is_held_ = true; }
  void release_round() { is_held_ = false; }

  // With sync_seconds: the time since the last round ended does not count, for instance of an evaluation. Call it
  // before the first step of a round. The lifetime of OuterParameters does not count either.
  void restart_clock();

  // Steps of the ranks with the fewest and with the most steps in a round.
  struct RoundSteps {
    int64_t fewest = 0;
    int64_t most = 0;
  };
  // Steps in the last round of sync_seconds; no value before its end.
  const std::optional<RoundSteps>& last_round() const { return last_round_; }

  // With a quorum: numbers that the caller sends with each message of its group, for instance the sum of its losses. So
  // ranks know them from each other without waiting.
  using Notes = std::array<double, 8>;
  // A round as all ranks see it.
  struct Round {
    int64_t steps = 0;                 // steps() at its end
    std::vector<int64_t> groups = {};  // that took part, in ascending order; see the constructor
    std::vector<Notes> notes = {};     // of these groups
  };
  // `notes` is called on each rank whenever its group sends a message. In a group of several ranks, the message has the
  // first rank's notes or, with `combine`, the result of combine(notes of the group's ranks, in their order). Then the
  // ranks of the group send their notes to each other. All ranks give `combine`, or none does.
  void set_notes(std::function<Notes()> notes, std::function<Notes(const std::vector<Notes>&)> combine = {}) {
    notes_ = std::move(notes);
    combine_notes_ = std::move(combine);
  }
  // After set_notes: the rounds that have ended on this rank since the last call, in order.
  std::vector<Round> take_rounds() { return std::exchange(ended_rounds_, {}); }

  // Whether the next step belongs to the warm-up: its gradients must be averaged over all ranks.
  bool is_warming_up() const;

  // Whether all ranks have the same parameters at present. That holds in the warm-up and after finish. With one
  // fragment and mix 0 it also holds right after an exchange is joined.
  bool replicas_are_equal() const { return replicas_are_equal_; }

  // During its lifetime the model has the parameters that finish would set, for instance for an evaluation; its end
  // restores this rank's parameters. A collective: it waits for the exchange that is under way, which is still joined
  // at the step when it is due. No step may be taken during its lifetime.
  class [[nodiscard]] OuterParameters {
   public:
    // Sets the outer parameters.
    explicit OuterParameters(OuterOptimizer& outer);
    ~OuterParameters();
    OuterParameters(const OuterParameters&) = delete;
    OuterParameters& operator=(const OuterParameters&) = delete;

   private:
    OuterOptimizer& outer_;
    std::vector<at::Tensor> own_;
    double elapsed_ = 0;  // of the round
  };

  // The reference, float32 [elements] on the parameters' device. It has no meaning in the warm-up.
  const at::Tensor& reference() const { return reference_; }

  // A collective. Returns the state on which later steps depend, besides parameters and the wrapped optimizer. Waits
  // for the exchange that is under way, which is still joined at the step when it is due: a checkpoint changes no bit
  // of the results. With a quorum it waits for all ranks, and averages messages that came too late for the last round.
  OuterState state();

  // A collective: resumes from such a state, before the first step, with the same options. In a world of the same size
  // and with the same groups the training continues with the same bits, if parameters and optimizer are restored, too.
  // In any other world all ranks take the reference. Throws CorruptInputError naming a tensor or number that is missing
  // or does not fit.
  void load_state(const OuterState& saved);

  // Elements of all parameters.
  int64_t elements() const { return elements_; }
  // Number of fragments issued so far, and of fragments whose mean was not finite. The same on all ranks.
  int64_t exchanges() const { return exchanges_; }
  int64_t lost_exchanges() const { return lost_exchanges_; }
  // Number of issued fragments that have been joined: all, or all except one.
  int64_t joined_exchanges() const { return exchanges_ - (under_way_ ? 1 : 0); }
  // Age of the mean that was joined last: steps since it was issued. Without a value before the first join.
  std::optional<int64_t> staleness() const;
  // Bytes that this rank has sent for exchanges, see CommHook::payload_bytes_sent.
  int64_t payload_bytes_sent() const;
  // The options passed to the constructor.
  const OuterOptions& options() const { return options_; }

 private:
  // A part of a parameter, in its memory's order.
  struct Slice {
    at::Tensor parameter;
    int64_t begin = 0;
    int64_t numel = 0;
    at::Tensor memory() const;  // [numel]
  };
  struct Fragment {
    int64_t begin = 0;  // in the reference
    int64_t numel = 0;
    std::vector<Slice> slices = {};
  };
  // An exchange of one fragment, from issue to join.
  struct Exchange {
    int64_t fragment = 0;
    int64_t joined_at = 0;                                // number of steps since the warm-up
    c10::intrusive_ptr<c10::ivalue::Future> future = {};  // null once `mean` is set
    at::Tensor mean = {};                                 // set once it is received
    bool is_of_parameters = false;                        // else of differences from the reference
  };

  static std::vector<Fragment> cut(const std::vector<at::Tensor>& parameters, int64_t count);
  void count_step();
  bool is_round_over() const;
  void begin_rounds();
  void check_equal_parameters() const;
  void make_memory();
  void make_exchange();
  void issue(int64_t fragment, std::optional<double> factor = std::nullopt);
  void decay_residuals();
  at::Tensor wait_for_mean();
  void join();
  void take_outer_step(const Fragment& fragment, const Exchange& exchange);
  void gather(const Fragment& fragment, const at::Tensor& flat) const;
  void scatter(const Fragment& fragment, double mix) const;
  void take_reference() const;
  void load_under_way(const hooks::HookState& replica);
  void load_round(const hooks::HookState& own);
  void end_step_of_quorum();
  bool catch_up();
  void catch_up_with_all();
  void average_late_messages();
  void average_rest();
  void send_difference();
  Notes notes_of_group() const;
  void take_round(const EndedRound& round, int64_t counted_steps);
  void move_own(const at::Tensor& by);
  int64_t steps_in_round() const;
  hooks::HookState state_of_quorum() const;
  void load_quorum(const OuterState& saved);
  at::Tensor part(const at::Tensor& flat, const Fragment& fragment) const;

  torch::optim::Optimizer& inner_;
  const ProcessGroupPtr group_;
  const OuterOptions options_;
  const std::vector<at::Tensor> parameters_;
  const int64_t elements_;
  const std::vector<Fragment> fragments_;
  std::unique_ptr<hooks::CommHook> exchange_;
  std::vector<hooks::NamedParameter> names_;  // names of the fragments, for the exchange's state
  at::Tensor reference_;
  at::Tensor momentum_;  // undefined if there is no momentum
  at::Tensor sent_;      // as long as the largest fragment
  std::optional<Exchange> under_way_;
  std::unique_ptr<RoundClock> clock_;     // null without sync_seconds
  std::unique_ptr<QuorumRounds> quorum_;  // null without a quorum
  bool is_late_ = false;                  // Whether this rank's group joins the next round as soon as it can.
  int64_t unsent_steps_ = 0;              // of this rank since its group's last message
  std::function<Notes()> notes_;
  std::function<Notes(const std::vector<Notes>&)> combine_notes_;
  std::vector<Round> ended_rounds_;
  int64_t steps_ = 0;
  int64_t common_steps_ = 0;  // the last number of steps that was equal on all ranks
  std::optional<RoundSteps> last_round_ = {};
  bool is_held_ = false;
  int64_t exchanges_ = 0;
  int64_t lost_exchanges_ = 0;
  bool replicas_are_equal_ = true;
};

}  // namespace narrowcast

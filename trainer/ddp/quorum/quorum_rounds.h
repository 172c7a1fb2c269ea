// Outer rounds that do not wait for slow groups of ranks (OuterOptions::quorum).
//
// The first rank of each group sends the group's difference to the first ranks of all other groups, in one message, and
// waits for none of them. A round averages the oldest message of each group that takes part in it:
//
//   group 0   steps | message 0 ->  round 0  | steps      | message 1 -> round 1 | ...
//   group 1   steps   | message 0 -> round 0 | steps      | message 1 -> round 1 | ...
//   group 2   steps (slow)  ...                         | round 0 | steps | message 0 -> round 1 | ...
//
// A round ends once `quorum` groups have a message that was not averaged yet, and each other group has one as well, or
// was late for the round before, or `grace_seconds` have passed. The first group that finds this decides who takes part
// (RoundDecisions); all others take its decision, the late ones when they come. So all groups average the same messages
// in the same order, and have the same bits. A message that comes too late for one round is in the next one.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>
#include "trainer/ddp/quorum/local_group.h"
#include "trainer/ddp/quorum/round_decisions.h"
#include "trainer/ddp/quorum/round_mail.h"
#include "trainer/ddp/quorum/round_message.h"

namespace narrowcast {

// A round that has ended.
struct EndedRound {
  std::vector<RoundHeader> headers = {};  // of the groups that took part, in ascending order
  at::Tensor mean = {};                   // float32 [elements]: of their differences, weighted
  bool has_own = false;                   // Whether this rank's group took part.
};

class QuorumRounds {
 public:
  struct Setup {
    ProcessGroupPtr group;
    std::vector<int64_t> groups = {};  // LocalGroup
    OuterOptions options = {};
    int64_t elements = 0;
    at::Device device = at::kCPU;  // of differences and means
  };

  // A collective. Throws c10::DistBackendError if a peer fails, and c10::ValueError on all ranks if the group has no
  // Gloo backend, or connections cannot be opened.
  explicit QuorumRounds(const Setup& setup);
  ~QuorumRounds() = default;
  QuorumRounds(const QuorumRounds&) = delete;
  QuorumRounds& operator=(const QuorumRounds&) = delete;

  // The following functions are collectives of this rank's group, and throw c10::DistBackendError if a peer fails.

  // Whether another group has sent its message, and this group's message would complete the quorum. Does not wait for
  // other groups.
  bool would_complete_quorum();

  // The next round, if it has ended without waiting for this group. Only waits for messages that are on the way.
  std::optional<EndedRound> next_ended();

  // The notes of the group's ranks, in their order.
  std::vector<OuterOptimizer::Notes> notes_of_group(const OuterOptimizer::Notes& own) const;

  // Sends the group's difference from the reference, of which only the first rank's counts. At most one message waits
  // to be averaged. `weight`: inner steps of one rank.
  void send(const at::Tensor& difference, int64_t weight, const OuterOptimizer::Notes& notes);
  // Messages of this group so far. Stochastic rounding draws other numbers for each of them, also after a resume.
  int64_t messages() const { return earlier_ + sent_; }
  void continue_after(int64_t messages) { earlier_ = messages; }
  // Whether a message of this group waits to be averaged.
  bool has_sent() const { return sent_ > averaged_; }

  // Waits until the next round ends. This group has sent a message.
  EndedRound wait_for_next();

  // Collectives of all ranks:

  // How many rounds the group has still to take until all have ended the same rounds, with next_missing().
  int64_t missing_rounds();
  EndedRound next_missing();
  // Call it afterwards. Returns the round of all messages that were not averaged yet; no value without one.
  std::optional<EndedRound> rest();
  // Waits until the messages of all ranks have left them.
  void wait_for_sends();

  // Rounds that this rank has ended.
  int64_t rounds() const { return rounds_; }
  int64_t bytes_sent() const { return mail_ ? mail_->bytes_sent() : 0; }

  // Error feedback of this group, float32 [elements]; undefined on ranks that do not have it.
  const at::Tensor& residual() const { return residual_; }
  int64_t groups() const { return groups_; }
  int64_t own_group() const { return own_; }
  // Ranks of all groups, by group.
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_first() const { return local_.is_first(); }
  at::Tensor encode_difference(const at::Tensor& difference);
  // On the first rank. The caller counts the round.
  EndedRound average(const std::vector<int64_t>& groups);
  std::vector<int64_t> wait_for_quorum();
  bool is_complete(const std::vector<int64_t>& groups) const;
  void wait_for_message(int64_t group, Clock::time_point since);
  std::chrono::milliseconds timeout() const;
  // `why`: for what it has waited.
  [[noreturn]] void throw_time_out(const std::string& why) const;
  EndedRound count(EndedRound round);
  std::optional<EndedRound> share(std::optional<EndedRound> round) const;
  void forget_decisions();

  const ProcessGroupPtr group_;
  const OuterOptions options_;
  const int64_t elements_;
  const at::Device device_;
  const LocalGroup local_;
  const int64_t groups_;
  const int64_t own_;
  const std::vector<int64_t> sizes_;
  std::optional<RoundDecisions> decisions_;  // on the first rank of a group
  std::optional<RoundMail> mail_;            // the same
  at::Tensor residual_;
  int64_t earlier_ = 0;   // messages of this group before a resume
  int64_t sent_ = 0;      // and since then
  int64_t averaged_ = 0;  // of those that were sent since then
  int64_t rounds_ = 0;
  bool is_behind_ = false;           // The last call of next_ended has found a round.
  std::vector<int64_t> last_round_;  // groups that took part in it
  std::vector<int64_t> ended_by_;    // rounds that each group had ended when it sent its last message
};

}  // namespace narrowcast

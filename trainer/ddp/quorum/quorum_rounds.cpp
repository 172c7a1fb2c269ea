#include "trainer/ddp/quorum/quorum_rounds.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <narrowcast/network_errors.h>
#include <narrowcast/wire_format.h>
#include "ops/comm/connections/group/connections.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_timeout.h"
#include "trainer/ddp/optimization/finite.h"

namespace narrowcast {
namespace {

constexpr const char* kConnecting = "connecting the groups of outer_quorum";
constexpr const char* kRound = "an outer round";
constexpr const char* kComparing = "comparing outer rounds";
constexpr std::chrono::milliseconds kBetweenLooks{1};

// The numbers of groups in the order of their first ranks, with the number of their ranks.
std::vector<int64_t> sizes_of(const node::NodeLayout& layout) {
  std::vector<int64_t> sizes;
  for (int64_t group = 0; group < layout.nodes(); ++group) {
    sizes.push_back(std::ssize(layout.ranks_of(group)));
  }
  return sizes;
}

// A collective: a store whose keys no other object has. The group's store may be older than the group.
c10::intrusive_ptr<c10d::Store> new_store(const ProcessGroupPtr& group) {
  const collectives::Announcement own = {.call = kConnecting,
                                         .numbers = {static_cast<int64_t>(std::random_device()())}};
  const int64_t number = collectives::agree(group, own).front().numbers.at(0);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("narrowcast/outer_rounds/", number), group->getStore());
}

}  // namespace

QuorumRounds::QuorumRounds(const Setup& setup)
    : group_(setup.group),
      options_(setup.options),
      elements_(setup.elements),
      device_(setup.device),
      local_(group_, setup.groups),
      groups_(local_.layout().nodes()),
      own_(local_.layout().node_of(group_->getRank())),
      sizes_(sizes_of(local_.layout())),
      ended_by_(static_cast<size_t>(groups_), 0) {
  const auto store = new_store(group_);
  const std::vector<int64_t> first_ranks = local_.first_ranks();
  std::vector<int64_t> peers;
  if (is_first()) {
    peers = first_ranks;
    std::erase(peers, group_->getRank());
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  if (groups_ > 1) {
    const std::optional<int64_t> count = options_.wire().connections;
    backend = connections::connect_to_peers(
        group_, kConnecting, peers, count == hooks::kAutoConnections ? std::nullopt : std::optional(count.value_or(1)));
  }
  for (int64_t group = 0; group < groups_; ++group) last_round_.push_back(group);
  if (!is_first()) {
    return;
  }
  decisions_.emplace(store, groups_, *options_.quorum());
  mail_.emplace(std::move(backend), first_ranks, own_,
                kRoundHeaderBytes + encoded_size(elements_, *options_.wire().format));
  if (options_.wire().error_feedback) {
    residual_ = at::zeros({elements_}, at::TensorOptions(at::kFloat).device(device_));
  }
}

bool QuorumRounds::would_complete_quorum() {
  bool would = false;
  if (is_first()) {
    mail_->look();
    std::vector<int64_t> others = mail_->groups_with_message();
    std::erase(others, own_);
    would = std::ssize(others) >= std::max<int64_t>(1, *options_.quorum() - 1);
  }
  return local_.from_first(would ? 1 : 0, kRound) != 0;
}

std::optional<EndedRound> QuorumRounds::next_ended() {
  std::optional<EndedRound> round;
  if (is_first()) {
    mail_->look();
    // It has ended only if some group had enough messages, which this group then has as well or will have soon. A group
    // that is behind asks in any case, so that it takes all rounds that have ended.
    if (is_behind_ || std::ssize(mail_->groups_with_message()) >= *options_.quorum()) {
      const auto groups = with_network_errors(group_->getRank(), kRound, [&] { return decisions_->find(rounds_); });
      if (groups) round = average(*groups);
    }
  }
  round = share(std::move(round));
  is_behind_ = round.has_value();
  return round ? std::optional(count(*std::move(round))) : std::nullopt;
}

// With error feedback the residual first becomes what is encoded, and then what the code lacks of it.
at::Tensor QuorumRounds::encode_difference(const at::Tensor& difference) {
  const WireFormat format = *options_.wire().format;
  // Each message has other random numbers.
  const EncodeOptions rounding{.seed = options_.wire().stochastic_rounding_seed, .step = messages() * groups_ + own_};
  if (!residual_.defined()) {
    return encode(difference, format, rounding);
  }
  const double decay = options_.effective_error_decay();
  if (decay != 1) residual_.mul_(decay);
  residual_.add_(difference);
  at::Tensor encoded = encode(residual_, format, rounding);
  residual_.sub_(decode(encoded, format, elements_));
  if (!all_finite(residual_)) residual_.zero_();  // This exchange will be lost, but later ones will not.
  return encoded;
}

std::vector<OuterOptimizer::Notes> QuorumRounds::notes_of_group(const OuterOptimizer::Notes& own) const {
  const at::Tensor row = at::tensor(at::ArrayRef<double>(own.data(), own.size()), at::kDouble);
  const at::Tensor rows = local_.gather(row, kRound).contiguous();
  std::vector<OuterOptimizer::Notes> notes(static_cast<size_t>(rows.size(0)));
  std::memcpy(notes.data(), rows.const_data_ptr(), rows.nbytes());
  return notes;
}

void QuorumRounds::send(const at::Tensor& difference, int64_t weight, const OuterOptimizer::Notes& notes) {
  TORCH_INTERNAL_ASSERT(!has_sent());
  const at::NoGradGuard no_grad;
  if (is_first()) {
    const RoundHeader header{.group = own_,
                             .number = sent_,
                             .rounds = rounds_,
                             .weight = weight * sizes_[static_cast<size_t>(own_)],
                             .notes = notes};
    mail_->send(round_message(header, encode_difference(difference)));
    forget_decisions();
  }
  ++sent_;
}

// A group reads the decision of each round that it has not ended. The first one deletes the others'.
void QuorumRounds::forget_decisions() {
  if (own_ != 0) {
    return;
  }
  ended_by_[0] = rounds_;
  with_network_errors(group_->getRank(), kRound, [&] { decisions_->forget_before(std::ranges::min(ended_by_)); });
}

// Groups that were late for the last round get no grace: a group that stands still delays the others once.
bool QuorumRounds::is_complete(const std::vector<int64_t>& groups) const {
  return std::ranges::includes(groups, last_round_);
}

std::vector<int64_t> QuorumRounds::wait_for_quorum() {
  const auto began = Clock::now();
  const std::chrono::duration<double> grace(options_.grace_seconds().value_or(0));
  std::optional<Clock::time_point> met;  // when this group found the quorum
  while (true) {
    mail_->look();
    std::vector<int64_t> groups = mail_->groups_with_message();
    const auto now = Clock::now();
    if (std::ssize(groups) >= *options_.quorum()) {
      if (!met) met = now;
      if (is_complete(groups) || now - *met >= grace) return groups;
    } else if (now - began > timeout()) {
      throw_time_out(c10::str("only groups ", text_of_groups(groups), " of ", groups_,
                              " have sent a message, but outer_quorum is ", *options_.quorum()));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

void QuorumRounds::wait_for_message(int64_t group, Clock::time_point since) {
  for (mail_->look(); !mail_->has_message(group); mail_->look()) {
    if (Clock::now() - since > timeout()) {
      throw_time_out(c10::str("group ", group, " takes part, but its message has not come completely"));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::chrono::milliseconds QuorumRounds::timeout() const {
  return timeout_of(*group_->getBackend(c10::DeviceType::CPU));
}

void QuorumRounds::throw_time_out(const std::string& why) const {
  TORCH_CHECK_WITH(DistBackendError, false, "rank ", group_->getRank(), ": outer round ", rounds_, " timed out after ",
                   timeout().count(), "ms: ", why);
}

EndedRound QuorumRounds::wait_for_next() {
  std::optional<EndedRound> round;
  if (is_first()) {
    round = with_network_errors(group_->getRank(), kRound,
                                [&] { return average(decisions_->decide(rounds_, wait_for_quorum())); });
  }
  return count(*share(std::move(round)));
}

// Sums in the order of groups, so that all ranks get the same bits. Products and sums are separate operations: fused
// ones would round differently on processors without them.
EndedRound QuorumRounds::average(const std::vector<int64_t>& groups) {
  const at::NoGradGuard no_grad;
  const auto began = Clock::now();
  EndedRound round{.has_own = std::ranges::binary_search(groups, own_)};
  std::vector<at::Tensor> messages;
  int64_t weights = 0;
  for (const int64_t group : groups) {
    wait_for_message(group, began);
    const int64_t number = mail_->taken(group);
    messages.push_back(mail_->take(group));
    round.headers.push_back(header_of(messages.back(), group, number));
    weights += round.headers.back().weight;
    ended_by_[static_cast<size_t>(group)] = round.headers.back().rounds;
  }
  const int64_t first_weight = round.headers.front().weight;
  const bool are_equal =
      std::ranges::all_of(round.headers, [&](const RoundHeader& header) { return header.weight == first_weight; });
  for (size_t i = 0; i < messages.size(); ++i) {
    at::Tensor difference = decode(encoded_in(messages[i]).to(device_), *options_.wire().format, elements_);
    if (!are_equal) {
      difference.mul_(static_cast<double>(round.headers[i].weight) / static_cast<double>(weights));
    }
    round.mean = round.mean.defined() ? round.mean.add_(difference) : difference;
  }
  if (are_equal && messages.size() > 1) round.mean.div_(static_cast<double>(messages.size()));
  return round;
}

EndedRound QuorumRounds::count(EndedRound round) {
  ++rounds_;
  averaged_ += round.has_own ? 1 : 0;
  last_round_.clear();
  for (const RoundHeader& header : round.headers) last_round_.push_back(header.group);
  return round;
}

// The ranks of a group get what its first rank has.
std::optional<EndedRound> QuorumRounds::share(std::optional<EndedRound> round) const {
  const int64_t headers = local_.from_first(round ? std::ssize(round->headers) : 0, kRound);
  if (headers == 0 || !local_.has_others()) {
    return round;
  }
  if (!is_first()) {
    round = EndedRound{.headers = std::vector<RoundHeader>(static_cast<size_t>(headers)),
                       .mean = at::empty({elements_}, at::TensorOptions(at::kFloat).device(device_))};
  }
  at::Tensor bytes = at::empty({headers * kRoundHeaderBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), round->headers.data(), bytes.nbytes());
  bytes = local_.from_first(bytes, kRound);
  std::memcpy(round->headers.data(), bytes.const_data_ptr(), bytes.nbytes());
  round->mean = local_.from_first(round->mean, kRound);
  round->has_own = std::ranges::any_of(round->headers, [&](const auto& header) { return header.group == own_; });
  return round;
}

int64_t QuorumRounds::missing_rounds() {
  const at::Tensor own = at::tensor({rounds_}, at::kLong);
  const at::Tensor all = collectives::all_gather_rows(group_, kComparing, own, collectives::any_device(group_));
  return all.max().item<int64_t>() - rounds_;
}

EndedRound QuorumRounds::next_missing() {
  std::optional<EndedRound> round;
  if (is_first()) {
    round = with_network_errors(group_->getRank(), kRound, [&] {
      const auto groups = decisions_->find(rounds_);
      TORCH_INTERNAL_ASSERT(groups, "another rank has ended this round");
      return average(*groups);
    });
  }
  return count(*share(std::move(round)));
}

// All have ended the same rounds, so they agree without a decision in the store.
std::optional<EndedRound> QuorumRounds::rest() {
  const at::Tensor own = at::tensor({has_sent() ? own_ : -1}, at::kLong);
  const at::Tensor all = collectives::all_gather_rows(group_, kComparing, own, collectives::any_device(group_));
  std::vector<int64_t> groups(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
  std::ranges::sort(groups);
  groups.erase(std::ranges::unique(groups).begin(), groups.end());
  std::erase(groups, -1);
  if (groups.empty()) {
    return std::nullopt;
  }
  std::optional<EndedRound> round;
  if (is_first()) {
    round = with_network_errors(group_->getRank(), kRound, [&] { return average(groups); });
  }
  // Who is on time has nothing to send here, and gets grace in the next round as before.
  const std::vector<int64_t> on_time = last_round_;
  round = count(*share(std::move(round)));
  last_round_ = on_time;
  return round;
}

// All have read all decisions by now.
void QuorumRounds::wait_for_sends() {
  while (mail_ && !mail_->has_sent_all()) std::this_thread::sleep_for(kBetweenLooks);
  if (own_ == 0 && is_first()) {
    with_network_errors(group_->getRank(), kRound, [&] { decisions_->forget_all_before(rounds_); });
  }
  collectives::all_gather_rows(group_, kComparing, at::zeros({1}, at::kLong), collectives::any_device(group_));
}

}  // namespace narrowcast

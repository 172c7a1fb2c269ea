#include "trainer/train/job/peer_proof.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/split_check.h"
#include "ops/common/libtorch_versions.h"

namespace narrowcast::job {
namespace {

constexpr int64_t kDigits = 64;  // Length of a number, and of an answer.

// Sends one text of kDigits to each rank, and returns the texts of all ranks for this one. Uses the connections of
// tensors on that device.
std::vector<std::string> exchange_texts(const ProcessGroupPtr& group, at::Device device,
                                        const std::vector<std::string>& texts) {
  at::Tensor sent = at::empty({group->getSize() * kDigits}, at::kByte);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::memcpy(sent.mutable_data_ptr<uint8_t>() + rank * kDigits, texts[rank].data(), kDigits);
  }
  sent = sent.to(device);
  at::Tensor received = at::zeros_like(sent);
  std::vector<int64_t> digits(texts.size(), kDigits);
  libtorch::all_to_all_single(group, received, sent, digits, digits)->wait();
  const at::Tensor bytes = received.cpu();
  std::vector<std::string> own;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    own.emplace_back(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()) + rank * kDigits, kDigits);
  }
  return own;
}

// Computes the answers of the proof.
struct Proof {
  program::JobSecret secret;
  std::string context;         // The job's name, the ranks of the group, and the type of device.
  std::vector<int64_t> ranks;  // The job's ranks, in the order of the group's.

  // The answer of `prover` to `asker`, who sent it `question`; `own` is the number that `prover` sent. `prover` and
  // `asker` are places in the group.
  std::string answer(size_t prover, size_t asker, const std::string& question, const std::string& own) const {
    return secret.mac(
        c10::str("narrowcast-peer-2 ", context, " ", ranks[prover], " to ", ranks[asker], " ", question, " ", own));
  }
};

void prove_on(const ProcessGroupPtr& group, at::Device device, const Proof& proof) {
  const auto own = static_cast<size_t>(group->getRank());
  const size_t size = proof.ranks.size();
  const auto exchange = [&](const std::vector<std::string>& texts) {
    return with_network_errors(proof.ranks[own], "proof of the job's secret",
                               [&] { return exchange_texts(group, device, texts); });
  };
  std::vector<std::string> questions;
  for (size_t peer = 0; peer < size; ++peer) {
    questions.push_back(program::random_nonce());
  }
  const std::vector<std::string> asked = exchange(questions);
  std::vector<std::string> answers;
  for (size_t peer = 0; peer < size; ++peer) {
    answers.push_back(proof.answer(own, peer, asked[peer], questions[peer]));
  }
  const std::vector<std::string> answered = exchange(answers);
  for (size_t peer = 0; peer < size; ++peer) {
    const std::string expected = proof.answer(peer, own, questions[peer], asked[peer]);
    TORCH_CHECK_WITH(DistBackendError, program::equal_in_constant_time(answered[peer], expected), "rank ",
                     proof.ranks[peer], " does not know the secret of ", program::kSecretVariable,
                     ", or another process impersonates it");
  }
}

// Proves on the connections of all devices of the group. `ranks`: the job's ranks, in the order of the group's.
void prove_in(const ProcessGroupPtr& group, const std::vector<int64_t>& ranks, const program::JobSecret& secret,
              const std::string& job) {
  if (group->getSize() == 1) {
    return;
  }
  for (const c10::Device& type : group->getDeviceTypes()) {
    const at::Device device = type.is_cpu() ? type : c10::impl::VirtualGuardImpl(type.type()).getDevice();
    prove_on(group, device,
             {secret, c10::str(job.size(), ":", job, " ranks ", c10::Join(",", ranks), " ", type.type()), ranks});
  }
}

}  // namespace

void prove_to_peers(const ProcessGroupPtr& group, const EnvironmentVariables& environment) {
  const auto secret = program::JobSecret::of_environment(environment);
  if (group->getSize() == 1) {
    return;
  }
  check_equal_on_all_ranks(group, {{program::kSecretVariable, secret.has_value() ? "given" : "not given"}});
  if (!secret.has_value()) {
    return;
  }
  const auto job = environment.find("TORCHELASTIC_RUN_ID");
  const std::string name = job == environment.end() ? "" : job->second;
  std::vector<int64_t> all(static_cast<size_t>(group->getSize()));
  std::iota(all.begin(), all.end(), 0);
  prove_in(group, all, *secret, name);
  collectives::check_splits(group,
                            [secret = *secret, name](const ProcessGroupPtr& split, const std::vector<int64_t>& ranks) {
                              prove_in(split, ranks, secret, name);
                            });
}

}  // namespace narrowcast::job

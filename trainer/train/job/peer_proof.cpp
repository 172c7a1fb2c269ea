#include "trainer/train/job/peer_proof.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/collectives/split_check.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::job {
namespace {

constexpr int64_t kDigits = 64;  // Of a number, and of an answer.

// One text of kDigits for each rank; what each rank had for this one. Over the connections of tensors on that device.
std::vector<std::string> exchange_texts(const ProcessGroupPtr& group, at::Device device,
                                        const std::vector<std::string>& texts) {
  at::Tensor sent = at::empty({group->getSize() * kDigits}, at::kByte);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::memcpy(sent.mutable_data_ptr<uint8_t>() + rank * kDigits, texts[rank].data(), kDigits);
  }
  sent = sent.to(device);
  at::Tensor received = at::zeros_like(sent);
  std::vector<int64_t> digits(texts.size(), kDigits);
  with_network_errors(group->getRank(), "proof of the job's secret",
                      [&] { libtorch::all_to_all_single(group, received, sent, digits, digits)->wait(); });
  const at::Tensor bytes = received.cpu();
  std::vector<std::string> own;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    own.emplace_back(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()) + rank * kDigits, kDigits);
  }
  return own;
}

struct Proof {
  program::JobSecret secret;
  std::string context;  // The job's name and number of ranks, and which connections they are.

  // What `prover` answers to `asker`, who asked that, having been asked `own`.
  std::string answer(int64_t prover, int64_t asker, const std::string& question, const std::string& own) const {
    return secret.mac(c10::str("narrowcast-peer-1 ", context, " ", prover, " to ", asker, " ", question, " ", own));
  }
};

void prove_on(const ProcessGroupPtr& group, at::Device device, const Proof& proof) {
  const int64_t rank = group->getRank();
  std::vector<std::string> questions;
  for (int64_t peer = 0; peer < group->getSize(); ++peer) {
    questions.push_back(program::random_nonce());
  }
  const std::vector<std::string> asked = exchange_texts(group, device, questions);
  std::vector<std::string> answers;
  for (int64_t peer = 0; peer < group->getSize(); ++peer) {
    const auto place = static_cast<size_t>(peer);
    answers.push_back(proof.answer(rank, peer, asked[place], questions[place]));
  }
  const std::vector<std::string> answered = exchange_texts(group, device, answers);
  for (int64_t peer = 0; peer < group->getSize(); ++peer) {
    const auto place = static_cast<size_t>(peer);
    const std::string expected = proof.answer(peer, rank, questions[place], asked[place]);
    TORCH_CHECK_WITH(DistBackendError, program::equal_in_constant_time(answered[place], expected), "rank ", peer,
                     " does not know the secret of ", program::kSecretVariable, ", or somebody else is in its place");
  }
}

// On the connections of all devices that the group has.
void prove_in(const ProcessGroupPtr& group, const program::JobSecret& secret, const std::string& job) {
  if (group->getSize() == 1) {
    return;
  }
  for (const c10::Device& type : group->getDeviceTypes()) {
    const at::Device device = type.is_cpu() ? type : c10::impl::VirtualGuardImpl(type.type()).getDevice();
    prove_on(group, device, {secret, c10::str(job.size(), ":", job, " ", group->getSize(), " ", type.type())});
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
  prove_in(group, *secret, name);
  collectives::check_splits(group,
                            [secret = *secret, name](const ProcessGroupPtr& split) { prove_in(split, secret, name); });
}

}  // namespace narrowcast::job

#include "trainer/train/job/peer_proof.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hooks/table/post_local_sgd.h"
#include "ops/comm/groups/split_check.h"
#include "ops/common/libtorch_versions.h"
#include "tests/support/error_message.h"
#include "tests/support/job_secret.h"
#include "tests/support/ranks.h"

namespace narrowcast::job {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::SecretFile;

const std::string kOurs = "what the ranks of the job know";

TEST(ProveToPeers, PassesWhereAllKnowTheSecretOrNoneIsGiven) {
  const SecretFile secret(kOurs);
  const EnvironmentVariables told{{program::kSecretVariable, secret.path()}, {"TORCHELASTIC_RUN_ID", "job"}};
  for (const int64_t world_size : {1, 2, 3, 5}) {
    run_ranks(world_size, [&](int64_t, const ProcessGroupPtr& group) {
      EXPECT_NO_THROW(prove_to_peers(group, told));
      EXPECT_NO_THROW(prove_to_peers(group, told)) << "once more";
      EXPECT_NO_THROW(prove_to_peers(group, {}));
    });
  }
}

// A stranger in a rank's place has everything that is sent openly, except the secret.
TEST(ProveToPeers, NamesTheRankThatDoesNotKnowIt) {
  for (const int64_t stranger : {0, 1, 2}) {
    std::vector<std::string> messages(3);
    run_ranks(3, [&](int64_t rank, const ProcessGroupPtr& group) {
      const SecretFile secret(rank == stranger ? "what a stranger makes up" : kOurs);
      messages[static_cast<size_t>(rank)] = testing::error_message<c10::DistBackendError>([&] {
        prove_to_peers(group, {{program::kSecretVariable, secret.path()}});
      });
    });
    for (int64_t rank = 0; rank < 3; ++rank) {
      const int64_t named = rank != stranger ? stranger : rank == 0 ? 1 : 0;
      EXPECT_EQ(messages[static_cast<size_t>(rank)],
                "rank " + std::to_string(named) +
                    " does not know the secret of NARROWCAST_SECRET_FILE, or another process impersonates it");
    }
  }
}

// Groups have separate connections: there somebody without the secret takes the rank's place.
TEST(ProveToPeers, IsAskedAgainInGroupsOfSomeRanks) {
  const SecretFile secret(kOurs);
  const EnvironmentVariables told{{program::kSecretVariable, secret.path()}};
  const node::NodeLayout parts = node::NodeLayout::of_size(4, 2);
  run_ranks(4, [&](int64_t rank, const ProcessGroupPtr& group) {
    prove_to_peers(group, told);
    const hooks::GroupPart part(group, parts);
    if (rank == 3) {
      collectives::check_splits(group, [](const ProcessGroupPtr& split, const std::vector<int64_t>&) {
        for (int time = 0; time < 2; ++time) {  // A question, and an answer.
          at::Tensor sent = at::full({split->getSize() * 64}, 'x', at::kByte);
          at::Tensor received = at::empty_like(sent);
          std::vector<int64_t> digits(static_cast<size_t>(split->getSize()), 64);
          libtorch::all_to_all_single(split, received, sent, digits, digits)->wait();
        }
      });
    }
    if (rank == 2) {
      EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { const hooks::GroupPart again(group, parts); }),
                  HasSubstr("rank 3 does not know the secret of NARROWCAST_SECRET_FILE"));
    } else {
      EXPECT_NO_THROW(hooks::GroupPart(group, parts));
    }
  });
}

// A rank of another job with the same secret proves nothing to this job.
TEST(ProveToPeers, IsOfTheJob) {
  const SecretFile secret(kOurs);
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const EnvironmentVariables told{{program::kSecretVariable, secret.path()},
                                    {"TORCHELASTIC_RUN_ID", rank == 0 ? "job" : "another"}};
    EXPECT_THAT(testing::error_message<c10::DistBackendError>([&] { prove_to_peers(group, told); }),
                HasSubstr("does not know the secret"));
  });
}

TEST(ProveToPeers, RefusesASecretOfSomeRanksAlone) {
  run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
    const SecretFile secret(kOurs);
    const EnvironmentVariables told{{program::kSecretVariable, rank == 0 ? secret.path() : ""}};
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { prove_to_peers(group, told); }),
                AllOf(HasSubstr("NARROWCAST_SECRET_FILE differs between ranks"), HasSubstr("not given")));
  });
}

}  // namespace
}  // namespace narrowcast::job

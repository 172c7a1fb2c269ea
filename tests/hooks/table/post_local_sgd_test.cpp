#include "hooks/table/post_local_sgd.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "tests/hooks/all/bucket.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using LocalGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

// Returns when all ranks have the hook. If one rank destroyed it at once, others might still be connecting to it.
std::unique_ptr<CommHook> make_local_hook(const LocalGroup& group, const LocalOptions& local) {
  auto hook = create_comm_hook("post_local_sgd", {.process_group = group, .local = local});
  testing::wait_for_ranks(group);
  return hook;
}

// A step of two buckets that hold the rank. Returns the result of the second one.
double average_rank(CommHook& hook, int64_t rank) {
  double value = 0;
  for (size_t index = 0; index < 2; ++index) {
    auto bucket = make_bucket(at::full({10}, static_cast<double>(rank)), index, 2);
    const auto future = hook.runHook(bucket);
    future->waitAndThrow();
    value = hook.parseHookResult(future->value())[0].item<double>();
  }
  return value;
}

// The mean of this rank's group, with consecutive ranks in groups.
double mean_in_group(int64_t rank, int64_t world, int64_t size) {
  const int64_t first = rank / size * size;
  const int64_t last = std::min(first + size, world) - 1;
  return 0.5 * static_cast<double>(first + last);
}

TEST(PostLocalSgdHook, AveragesOverAllRanksAndAfterwardsInGroups) {
  for (const int64_t world : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t size : {1, 2, 3}) {
      run_ranks(world, [&](int64_t rank, const LocalGroup& group) {
        const auto hook = make_local_hook(group, {.start = 2, .group_size = size});
        for (int64_t step = 0; step < 5; ++step) {
          EXPECT_EQ(hook->keeps_replicas_equal(), step < 2);
          const double expected = step < 2 ? mean_in_group(rank, world, world) : mean_in_group(rank, world, size);
          EXPECT_NEAR(average_rank(*hook, rank), expected, 1e-6 * static_cast<double>(world)) << "step " << step;
        }
      });
    }
  }
}

TEST(PostLocalSgdHook, SendsNothingWithoutAGroup) {
  run_ranks(3, [](int64_t rank, const LocalGroup& group) {
    const auto alone = make_local_hook(group, {.group_size = 1});
    EXPECT_EQ(average_rank(*alone, rank), static_cast<double>(rank));
    EXPECT_EQ(alone->payload_bytes_sent(), 0);
    const auto node = make_local_hook(group, {});  // All ranks share this machine.
    EXPECT_NEAR(average_rank(*node, rank), 1, 1e-6);
    EXPECT_EQ(node->payload_bytes_sent(), 2 * ring_all_reduce_bytes(40, 3));
  });
}

// The compression of the last step: of the hook of all ranks, then of the hook in this rank's group, if it sends.
TEST(PostLocalSgdHook, SaysTheCompressionOfThePresentHook) {
  run_ranks(3, [](int64_t rank, const LocalGroup& group) {
    const auto hook = make_local_hook(group, {.start = 1, .group_size = 2, .hook = "bf16_compress"});
    EXPECT_EQ(hook->compression(), std::nullopt);
    average_rank(*hook, rank);
    EXPECT_EQ(hook->compression(), 2);
    average_rank(*hook, rank);
    EXPECT_EQ(hook->compression(), rank < 2 ? std::optional(2.0) : std::nullopt) << "rank 2 is alone";
  });
}

TEST(PostLocalSgdHook, TakesAnyHookThatAverages) {
  run_ranks(4, [](int64_t rank, const LocalGroup& group) {
    for (const char* const inner : {"bf16_compress", "quantize_per_tensor", "int8", "auto"}) {
      const auto hook = make_local_hook(group, {.start = 1, .group_size = 2, .hook = inner});
      EXPECT_NEAR(average_rank(*hook, rank), 1.5, 0.02) << inner;
      EXPECT_NEAR(average_rank(*hook, rank), mean_in_group(rank, 4, 2), 0.02) << inner;
    }
  });
}

TEST(PostLocalSgdHook, ResumesWhereItWas) {
  run_ranks(4, [](int64_t rank, const LocalGroup& group) {
    const LocalOptions options{.start = 2, .group_size = 2, .hook = "int8"};
    const auto first = make_local_hook(group, options);
    average_rank(*first, rank);
    for (int64_t step = 1; step < 4; ++step) {
      const auto resumed = make_local_hook(group, options);
      resumed->load_state({.world_size = 4, .states = {first->state({})}, .first = {}}, {});
      EXPECT_EQ(resumed->keeps_replicas_equal(), step < 2);
      EXPECT_EQ(resumed->payload_bytes_sent(), first->payload_bytes_sent());
      EXPECT_EQ(average_rank(*resumed, rank), average_rank(*first, rank)) << "step " << step;
    }
  });
}

// A node of four ranks that has three now, and groups of another size. The state of the inner hook depends on its
// number of ranks.
TEST(PostLocalSgdHook, BeginsAnewInOtherGroups) {
  const LocalOptions options{.hook = "auto"};
  std::vector<HookState> left(4);
  run_ranks(4, [&](int64_t rank, const LocalGroup& group) {
    const auto hook = make_local_hook(group, options);
    EXPECT_THAT(hook->groups(), ElementsAre(0, 0, 0, 0));
    average_rank(*hook, rank);
    left[static_cast<size_t>(rank)] = hook->state({});
  });
  run_ranks(3, [&](int64_t rank, const LocalGroup& group) {
    const auto hook = make_local_hook(group, options);
    hook->load_state({.world_size = 4, .states = {left[static_cast<size_t>(rank)]}, .first = {}}, {});
    EXPECT_NEAR(average_rank(*hook, rank), 1, 0.02);
  });
  run_ranks(4, [&](int64_t rank, const LocalGroup& group) {
    const auto hook = make_local_hook(group, {.group_size = 3, .hook = "auto"});
    EXPECT_THAT(hook->groups(), ElementsAre(0, 0, 0, 1));
    hook->load_state({.world_size = 4, .states = {left[static_cast<size_t>(rank)]}, .first = {}}, {});
    EXPECT_NEAR(average_rank(*hook, rank), mean_in_group(rank, 4, 3), 0.02);
  });
}

// Otherwise a second hook would read wrong ranks from the options.
TEST(PostLocalSgdHook, LeavesTheGroupsOptionsAlone) {
  run_ranks(4, [](int64_t rank, const LocalGroup& group) {
    const auto options = group->getBackend(at::kCPU)->getBackendOptions();
    for (int64_t i = 0; i < 3; ++i) {
      const auto hook = make_local_hook(group, {.group_size = 2});
      EXPECT_THAT(options->global_ranks_in_group, ::testing::IsEmpty());
      EXPECT_EQ(average_rank(*hook, rank), mean_in_group(rank, 4, 2));
    }
  });
}

// Ranks that average gradients need no shared memory, and dropping a group would change the training.
TEST(PostLocalSgdHook, TheRanksOfANodeAreAGroupWithoutMemory) {
  const testing::FileSizeLimit no_memory(1 << 20);
  run_ranks(3, [](int64_t rank, const LocalGroup& group) {
    const auto hook = make_local_hook(group, {});
    EXPECT_THAT(hook->groups(), ElementsAre(0, 0, 0));
    EXPECT_NEAR(average_rank(*hook, rank), 1, 1e-6);
  });
}

// Records the factors by which it is rescaled.
class RescaledHook final : public CommHook {
 public:
  explicit RescaledHook(std::atomic<int64_t>& rescaled) : rescaled_(rescaled) {}
  std::string_view name() const override { return "rescaled"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& /*bucket*/) override { return {}; }
  void rescale_state(double factor) override { rescaled_ += factor == 0.5 ? 1 : 0; }

 private:
  std::atomic<int64_t>& rescaled_;
};

TEST(PostLocalSgdHook, RescalesTheStatesOfBothHooks) {
  std::atomic<int64_t> rescaled = 0;
  HookRow row = hook_row("allreduce");
  row.name = "rescaled";
  row.make = [&](const HookRow& /*row*/, const HookOptions& /*options*/) {
    return std::make_unique<RescaledHook>(rescaled);
  };
  const AddedHookRow added(row);
  run_ranks(3, [&](int64_t /*rank*/, const LocalGroup& group) {
    const auto hook = make_local_hook(group, {.start = 1, .group_size = 2, .hook = "rescaled"});
    hook->rescale_state(0.5);
  });
  EXPECT_EQ(rescaled, 5) << "of three ranks in all, and two that are not alone in their group";
}

TEST(PostLocalSgdHook, SaysItsPayload) {
  const auto bytes = [](const LocalOptions& local, const node::NodeLayout& nodes) {
    return hook_row("post_local_sgd").payload_bytes({1024}, nodes, {.process_group = nullptr, .local = local});
  };
  EXPECT_EQ(bytes({.group_size = 1}, node::NodeLayout::flat(4)), 0);
  EXPECT_EQ(bytes({.group_size = 2}, node::NodeLayout::flat(4)), ring_all_reduce_bytes(4096, 2));
  EXPECT_EQ(bytes({}, node::NodeLayout::of_size(5, 3)), ring_all_reduce_bytes(4096, 3)) << "the largest node";
}

TEST(PostLocalSgdHook, RefusesWhatCannotBe) {
  const auto refused = [](const std::string& hook, const LocalOptions& local) {
    return testing::error_message<c10::ValueError>([&] { check_comm_hook(hook, {}, std::nullopt, local); });
  };
  EXPECT_THAT(refused("post_local_sgd", {.start = -1}), HasSubstr("outer_warmup: must be at least 0, but is -1"));
  EXPECT_THAT(refused("post_local_sgd", {.group_size = 0}), HasSubstr("local_group: must be at least 1, but is 0"));
  for (const char* const inner : {"none", "noop", "post_local_sgd"}) {
    EXPECT_THAT(refused("post_local_sgd", {.hook = inner}),
                HasSubstr("local_hook: must be a hook that averages gradients"));
  }
  EXPECT_THAT(refused("post_local_sgd", {.hook = "power_sgd"}),
              HasSubstr("local_hook: 'power_sgd' would compress nothing in its first 1000 steps"));
  EXPECT_THAT(refused("post_local_sgd", {.hook = "int9"}), HasSubstr("unknown name 'int9'"));
  EXPECT_THAT(refused("int8", {.group_size = 2}),
              HasSubstr("local_group: 2 has no effect with the hook 'int8'; it is for post_local_sgd"));
}

}  // namespace
}  // namespace narrowcast::hooks

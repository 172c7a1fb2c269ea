// The hook auto on GPUs, over NCCL.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "hooks/row/levels.h"
#include "hooks/table/auto_hook.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/link/link.h"
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast::hooks {
namespace {

using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

at::Tensor on_gpu(int64_t numel, float value) { return at::full({numel}, value, at::device(at::kCUDA)); }

TEST(CudaAutoHook, MeasuresItsCandidates) {
  testing::run_nccl_ranks(2, [](int64_t rank, const Group& group) {
    const auto hook = create_comm_hook("auto", {.process_group = group, .wire = {.node_size = 1}});
    EXPECT_THAT(hook->decision(), HasSubstr("between nodes, measured"));
    EXPECT_GT(collectives::measuring_bytes_sent(group), 0);
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor mean = run_on(*hook, make_bucket(on_gpu(1 << 20, static_cast<float>(rank))));
      EXPECT_TRUE((mean - 0.5).abs().le(0.01).all().item<bool>());
    }
  });
}

TEST(CudaAutoHook, PassesBucketsToSeveralHooks) {
  testing::run_nccl_ranks(2, [](int64_t rank, const Group& group) {
    const WireOptions wire{.node_size = 1, .link_gbit = 10, .link_us = 50};
    const auto cost = [](const std::string& name) {
      return name == "allreduce" ? ExchangeCost{0, 1e-3} : ExchangeCost{name == "int8" ? 1e-1 : 1e3, 1e-4};
    };
    AutoHook hook(hook_row("auto"), {.process_group = group, .wire = wire}, {.cost = cost, .window = 3});
    EXPECT_EQ(hook.hook_for(64), "allreduce");
    EXPECT_EQ(hook.hook_for(1 << 20), "int8");
    for (int64_t step = 0; step < 12; ++step) {
      for (size_t index = 0; index < 2; ++index) {
        const int64_t numel = index == 0 ? 64 : 1 << 20;
        const at::Tensor mean = run_on(hook, make_bucket(on_gpu(numel, static_cast<float>(rank)), index, 2));
        EXPECT_TRUE((mean - 0.5).abs().le(0.01).all().item<bool>()) << index;
      }
    }
    EXPECT_EQ(hook.changes(), 0) << "all-reduces take less than such costs without the link";
  });
}

}  // namespace
}  // namespace narrowcast::hooks

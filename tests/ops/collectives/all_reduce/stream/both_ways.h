// The mean on a stream next to the mean on the engine; both must have the same bits. On the CPU, where a group's
// collectives block.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/stream/stream_all_reduce.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "tests/support/ranks.h"
#include "tests/support/recorded_group.h"

namespace narrowcast::collectives {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

inline std::vector<at::Tensor> make_stream_arrays(int64_t world_size, int64_t numel,
                                                  at::ScalarType dtype = at::kFloat) {
  at::manual_seed(numel);
  std::vector<at::Tensor> arrays;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    arrays.push_back(at::randn({numel}).to(dtype));
  }
  return arrays;
}

// Null for one level. The calls of its groups are added to `record`, if there is one.
inline std::shared_ptr<const StreamGroups> split_over_gloo(
    const Group& group, const node::NodeLayout& layout, const std::shared_ptr<testing::CollectiveRecord>& record = {}) {
  const auto make = [&](const c10::intrusive_ptr<c10d::Store>& store, int place, int size) {
    // join_ranks waits for all ranks. Otherwise a rank that is done at once would end ranks that still connect.
    const Group made = testing::join_ranks(store, place, size, {});
    return record == nullptr ? made : testing::recorded(made, record);
  };
  return layout.has_levels() ? std::make_shared<const StreamGroups>(group, layout, make) : nullptr;
}

// The results of stream and engine for the same calls, step after step.
struct BothWays {
  std::unique_ptr<StreamAllReduce> stream;
  std::shared_ptr<AllReduceJob> job;
  std::shared_ptr<engine::Engine> engine;
  at::Tensor stream_residuals[2];
  at::Tensor engine_residuals[2];
  bool error_feedback = false;
  at::Tensor carried;  // For the next step; stream and engine each have a copy.

  // Every `node_size` consecutive ranks are a node.
  BothWays(const Group& group, AllReduceJobOptions options, bool with_error_feedback, int64_t node_size = 1)
      : error_feedback(with_error_feedback) {
    options.name = "a mean";
    options.rank = group->getRank();
    options.world_size = group->getSize();
    options.nodes = node::find_nodes(group, node_size);
    const node::NodeLayout& layout = options.nodes->layout;
    stream = std::make_unique<StreamAllReduce>(StreamRanks{group, split_over_gloo(group, layout)}, options, at::kCPU);
    job = std::make_shared<AllReduceJob>(options, JobMemory{});
    engine = engine::Engine::for_group(group);
    const SentParts parts = sent_parts(layout, options.rank, options.numel);
    for (at::Tensor* const residuals : {stream_residuals, engine_residuals}) {
      residuals[0] = at::zeros({parts.own.numel});
      residuals[1] = at::zeros({parts.mean.numel});
    }
  }

  Residuals residuals(const at::Tensor* tensors) const {
    return error_feedback ? Residuals{.own = tensors[0].mutable_data_ptr<float>(),
                                      .mean = tensors[1].mutable_data_ptr<float>(),
                                      .carried = carried.defined() ? carried.clone() : carried}
                          : Residuals{};
  }

  void step(const at::Tensor& array, const codec::wire::Rounding& rounding) {
    const at::Tensor by_stream = array.clone();
    stream->enqueue({by_stream, rounding, residuals(stream_residuals)});
    job->set_call({array.clone(), rounding, residuals(engine_residuals)});
    const auto future = engine->submit(job);
    future->waitAndThrow();
    EXPECT_TRUE(at::equal(by_stream, future->value().toTensor()));
    EXPECT_TRUE(at::equal(stream_residuals[0], engine_residuals[0]));
    EXPECT_TRUE(at::equal(stream_residuals[1], engine_residuals[1]));
  }
};

}  // namespace narrowcast::collectives

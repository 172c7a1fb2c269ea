#include "trainer/launcher/group/group.h"

#include <gtest/gtest.h>

namespace narrowcast::launcher {
namespace {

NodeDescription node(const std::string& host, int64_t node_rank) {
  NodeDescription description;
  description.host = host;
  description.pid = 7;
  description.node_rank = node_rank;
  description.settings = {.backend = "static", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .rdzv_id = "job"};
  return description;
}

TEST(Difference, IsNoneBetweenLaunchersThatAgree) {
  NodeDescription other = node("b", 1);
  other.nproc = 8;  // may differ
  other.role = "reader";
  EXPECT_EQ(difference(node("a", 0), other), "");
}

TEST(Difference, NamesFlagAndBothValues) {
  NodeDescription other = node("b", 1);
  other.settings.max_nodes = other.settings.min_nodes = 3;
  EXPECT_EQ(difference(node("a", 0), other), "--nnodes is 2 on node 0, a (pid 7), but 3 on node 1, b (pid 7)");
  other = node("b", 1);
  other.settings.max_restarts = 2;
  EXPECT_EQ(difference(node("a", 0), other), "--max_restarts is 1 on node 0, a (pid 7), but 2 on node 1, b (pid 7)");
  other = node("b", 1);
  other.settings.rdzv_id = "";
  EXPECT_EQ(difference(node("a", 0), other),
            "--rdzv_id is job on node 0, a (pid 7), but not given on node 1, b (pid 7)");
}

TEST(Difference, CallsElasticNodesByHostAndProcess) {
  NodeDescription one = node("a", 0);
  NodeDescription other = node("b", 0);
  one.settings.backend = "c10d";
  one.settings.min_nodes = 1;
  EXPECT_EQ(difference(one, other), "--rdzv_backend is c10d on a (pid 7), but static on node 0, b (pid 7)");
  other.settings.backend = "c10d";
  EXPECT_EQ(difference(one, other), "--nnodes is 1:2 on a (pid 7), but 2 on b (pid 7)");
}

}  // namespace
}  // namespace narrowcast::launcher

#include <narrowcast/hook_state.h>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using testing::error_message;

TEST(HookState, KeepsIntegersWhole) {
  const int64_t large = (int64_t{1} << 62) + 1;
  EXPECT_EQ(int_of({{"count", int_tensor(large)}}, "count"), large);
}

TEST(HookState, NamesWhatIsMissingOrNoInteger) {
  EXPECT_EQ(error_message<CorruptInputError>([] { int_of({}, "count"); }), "the hook's state lacks 'count'");
  EXPECT_EQ(error_message<CorruptInputError>([] {
              int_of({{"count", at::zeros({1})}}, "count");
            }),
            "the hook's state 'count' is no integer");
}

TEST(FormerRanks, OwnIsTheFirstRanksWhereThereIsNone) {
  FormerRanks saved;
  saved.first = {{"count", int_tensor(1)}};
  EXPECT_EQ(int_of(saved.own(), "count"), 1);
  saved.states = {{{"count", int_tensor(2)}}, {{"count", int_tensor(3)}}};
  EXPECT_EQ(int_of(saved.own(), "count"), 2);
}

}  // namespace
}  // namespace narrowcast::hooks

#include "trainer/ddp/recovery/new_ranks.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::recovery {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three ranks with these seeds. Those in `new_ranks` are new.
class NewRanksTest : public ::testing::Test {
 protected:
  std::vector<std::string> outcomes(const std::vector<std::string>& seeds, const std::vector<int64_t>& new_ranks) {
    std::vector<std::string> texts(seeds.size());
    testing::run_ranks(std::ssize(seeds), [&](int64_t rank, const ProcessGroupPtr& group) {
      const bool is_new = std::ranges::count(new_ranks, rank) > 0;
      try {
        const NewRanks found = check_new_ranks(group, is_new ? Standing::kNew : Standing::kHasAgreed, "state",
                                               {{"hook", "int8"}, {"seed", seeds[rank]}});
        EXPECT_EQ(found.ranks, new_ranks);
        texts[rank] = found.misfit.empty() ? "goes on" : "misfit: " + found.misfit;
      } catch (const c10::DistBackendError& error) {
        texts[rank] = std::string("lost: ") + error.what_without_backtrace();
      } catch (const c10::ValueError& error) {
        texts[rank] = std::string("error: ") + error.what_without_backtrace();
      }
    });
    return texts;
  }
};

TEST_F(NewRanksTest, GoOnIfTheyAreEqual) {
  EXPECT_THAT(outcomes({"1", "1", "1"}, {0, 1, 2}), Each("goes on"));
  EXPECT_THAT(outcomes({"1", "1", "1"}, {0, 2}), Each("goes on"));
  EXPECT_THAT(outcomes({"1", "1", "1"}, {}), Each("goes on"));
}

TEST_F(NewRanksTest, AllFailIfAllAreNew) {
  EXPECT_THAT(outcomes({"1", "1", "2"}, {0, 1, 2}), Each(AllOf(HasSubstr("error: "), HasSubstr("seed"))));
}

TEST_F(NewRanksTest, OneThatDiffersFromFormerOnesEndsAlone) {
  EXPECT_THAT(outcomes({"2", "1", "1"}, {0, 2}),
              ElementsAre("misfit: seed: this new process has '2', the ranks of the job have '1'",
                          "lost: rank 1: rank 0 is new, and has another state",
                          "lost: rank 2: rank 0 is new, and has another state"));
}

TEST(ParseNamedValues, TakesPairsOfTextsOnly) {
  EXPECT_EQ(parse_named_values(R"([["a", "1"], ["b", ""]])", "rank 1").size(), 2U);
  for (const char* const text : {"", "{}x", "[1]", R"([["a"]])", R"([["a", 1]])"}) {
    EXPECT_THROW(parse_named_values(text, "rank 1"), CorruptInputError) << text;
  }
}

}  // namespace
}  // namespace narrowcast::recovery

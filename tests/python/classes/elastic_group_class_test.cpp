// torch.classes.narrowcast.ElasticGroup: what it asks for, in a world of one. tests/python/package has the other tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/python/classes/script.h"

namespace narrowcast::classes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kElasticScript = R"(
def make(options: Dict[str, Any]) -> ElasticGroup:
    return ElasticGroup(options)

def add(elastic: ElasticGroup, counter: Tensor) -> None:
    elastic.add_tensor("counter", counter)
    elastic.add_functions("functions", 7)

def run(elastic: ElasticGroup, answer: int) -> int:
    elastic.run(answer)
    return elastic.recoveries()

def fail(elastic: ElasticGroup, error: str) -> None:
    elastic.fail(error)
)";

torch::jit::CompilationUnit& elastic_script() {
  static const std::shared_ptr<torch::jit::CompilationUnit> unit = compile(kElasticScript);
  return *unit;
}

// The program of these tests, which a function pointer must reach. Its answers are those of Answer.
struct Program {
  c10::IValue elastic;
  int64_t answer_to_step_1 = 2;  // kNo
  std::vector<std::string> requests = {};
};
Program* program = nullptr;

int64_t answer(int64_t request, int64_t number) {
  program->requests.push_back(std::to_string(request) + ":" + std::to_string(number));
  return request == 2 && number == 1 ? program->answer_to_step_1 : 3;
}

class ElasticGroupClassTest : public ::testing::Test {
 protected:
  ElasticGroupClassTest() {
    own.elastic = elastic_script().run_method("make", to_option_dict({{"copies_state", false}}));
    program = &own;
  }
  ~ElasticGroupClassTest() override { program = nullptr; }

  c10::IValue run() const {
    return elastic_script().run_method("run", own.elastic, reinterpret_cast<int64_t>(&answer));
  }

  Program own;
};

// Without recovery nothing is saved: make (0), the steps (2), drop (1).
TEST_F(ElasticGroupClassTest, StepsAreTakenUntilOneIsTheLast) {
  elastic_script().run_method("add", own.elastic, at::zeros({2}));
  EXPECT_EQ(run().toInt(), 0);
  EXPECT_THAT(own.requests, ElementsAre("0:0", "2:0", "2:1", "1:0"));
}

TEST_F(ElasticGroupClassTest, AnErrorOfTheProgramEndsTheSteps) {
  own.answer_to_step_1 = 0;  // kFailed
  EXPECT_THAT(script_error([&] { run(); }), HasSubstr("an error of the program"));
  EXPECT_EQ(own.requests.back(), "1:0");
}

TEST_F(ElasticGroupClassTest, AnErrorOfAPeerNamesTheStep) {
  own.answer_to_step_1 = 1;  // kLost
  elastic_script().run_method("fail", own.elastic, "[/gloo/pair.cc:1] Connection closed by peer");
  EXPECT_THAT(script_error([&] { run(); }), HasSubstr("rank 0: step 1 failed: Connection closed by peer"));
}

TEST_F(ElasticGroupClassTest, WrongOptionsAreNamed) {
  const auto error_of = [](const GivenOptions& given) {
    return script_error([&] { elastic_script().run_method("make", to_option_dict(given)); });
  };
  EXPECT_THAT(error_of({{"steps", 3}}), HasSubstr("unknown option 'steps'"));
  EXPECT_THAT(error_of({{"silence_seconds", -1.0}}), HasSubstr("silence_seconds: must be in 0..1e+06, but is -1"));
}

}  // namespace
}  // namespace narrowcast::classes

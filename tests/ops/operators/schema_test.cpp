// Every operator of ops/operators/schema.cpp has kernels for every device, and a derivative or an error that it has
// none.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace narrowcast {
namespace {

std::vector<c10::OperatorHandle> operators() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() == "narrowcast") found.push_back(dispatcher.findOp(name).value());
  }
  return found;
}

// The operators without such a kernel.
std::vector<std::string> names_without(c10::DispatchKey key) {
  std::vector<std::string> names;
  for (const c10::OperatorHandle& op : operators()) {
    const bool has_kernel =
        c10::isAliasDispatchKey(key) ? op.hasKernelForDispatchKey(key) : op.hasComputedKernelForDispatchKey(key);
    if (!has_kernel) names.push_back(op.operator_name().name);
  }
  return names;
}

// A kernel for a name without a schema would be registered but never called.
TEST(Schema, IsThereForEveryKernel) {
  EXPECT_FALSE(operators().empty());
  for (const c10::OperatorHandle& op : operators()) EXPECT_TRUE(op.hasSchema()) << op.operator_name().name;
}

TEST(Schema, HasKernelsForEveryDevice) {
  EXPECT_THAT(names_without(c10::DispatchKey::CPU), ::testing::IsEmpty());
  EXPECT_THAT(names_without(c10::DispatchKey::Meta), ::testing::IsEmpty());
}

// Without an Autograd kernel, autograd would treat results as constants. encoded_size has no tensors.
TEST(Schema, TellsAutogradOfEveryOperator) {
  EXPECT_THAT(names_without(c10::DispatchKey::Autograd), ::testing::ElementsAre("narrowcast::encoded_size"));
}

TEST(Schema, HasNoOverloads) {
  for (const c10::OperatorHandle& op : operators()) EXPECT_EQ(op.operator_name().overload_name, "");
}

}  // namespace
}  // namespace narrowcast

// The package's other components, used without DistributedDataParallel: operators, hooks and models.
#include <ATen/ops/full.h>
#include <narrowcast/hooks.h>
#include <narrowcast/models.h>
#include <narrowcast/wire_format.h>

#include <iostream>

int main() {
  const auto format = narrowcast::hooks::wire_format_of("int8");
  const auto numel = narrowcast::models::count_parameters("mlp");
  if (!format) {
    return 1;
  }
  const at::Tensor gradients = at::full({numel}, 127.0);  // The scale is 1, so that nothing is rounded.
  const at::Tensor bytes = narrowcast::encode(gradients, *format);
  std::cout << "the hook int8 sends " << numel << " numbers of an mlp as " << bytes.numel() << " bytes\n";
  return narrowcast::decode(bytes, *format, numel).equal(gradients) ? 0 : 1;
}

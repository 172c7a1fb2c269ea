#include "ops/cpu/weight_only_int8/dense.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "ops/cpu/weight_only_int8/row_kernels.h"

namespace narrowcast::cpu {
namespace {

// Widened codes at a time: few enough for a second-level cache, and enough for the matrix product's full speed.
constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kLeastBlock = 16;  // outputs

// Outputs per block: at least one block for each thread, if there are enough outputs.
int64_t block_outputs(const Int8Layer& layer, int64_t element_size) {
  const int64_t in_cache = kBlockBytes / element_size / layer.inputs / kLeastBlock * kLeastBlock;
  const int64_t per_thread = (layer.outputs + at::get_num_threads() - 1) / at::get_num_threads();
  return std::clamp(std::min(in_cache, per_thread), std::min(kLeastBlock, layer.outputs), layer.outputs);
}

// One thread's memory: widened codes of a block, and the product of all rows with them.
struct Scratch {
  Scratch(const at::Tensor& x, int64_t block)
      : codes(at::empty({block, x.size(1)}, x.options())), product(at::empty({x.size(0) * block}, x.options())) {}
  at::Tensor codes;
  at::Tensor product;
};

template <class T>
void multiply_block(const at::Tensor& x, const Int8Layer& layer, Range outputs, const Scratch& scratch, T* y) {
  const int64_t width = outputs.end - outputs.begin;
  widen_codes(layer.codes + outputs.begin * layer.inputs, width * layer.inputs, scratch.codes.mutable_data_ptr<T>());
  at::Tensor product = scratch.product.narrow(0, 0, x.size(0) * width).view({x.size(0), width});
  at::mm_out(product, x, scratch.codes.narrow(0, 0, width).t());
  for (int64_t row = 0; row < x.size(0); ++row) {
    scale_outputs(product.const_data_ptr<T>() + row * width, layer, outputs, y + row * layer.outputs + outputs.begin);
  }
}

// A thread does whole blocks, on its own, so that threads wait for each other only once.
template <class T>
void multiply_blocks(const at::Tensor& x, const Int8Layer& layer, T* y) {
  const int64_t block = block_outputs(layer, sizeof(T));
  at::parallel_for(0, (layer.outputs + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;  // Each thread has its own dispatch state.
    const Scratch scratch(x, block);
    for (int64_t first = begin * block; first < std::min(end * block, layer.outputs); first += block) {
      multiply_block(x, layer, {first, std::min(first + block, layer.outputs)}, scratch, y);
    }
  });
}

}  // namespace

void multiply_dense(const at::Tensor& x, const Int8Layer& layer, const at::Tensor& y) {
  if (x.scalar_type() == at::kFloat) {
    multiply_blocks(x, layer, y.mutable_data_ptr<float>());
  } else {
    multiply_blocks(x, layer, y.mutable_data_ptr<c10::BFloat16>());
  }
}

}  // namespace narrowcast::cpu

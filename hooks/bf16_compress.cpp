#include "hooks/bf16_compress.h"

#include "hooks/compress.h"

namespace narrowcast::hooks {

std::unique_ptr<CommHook> make_bf16_compress_hook(const HookOptions& options) {
  return std::make_unique<CompressHook>(options, CompressHook::Format{"bf16_compress", at::kBFloat16});
}

}  // namespace narrowcast::hooks

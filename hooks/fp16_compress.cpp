#include "hooks/fp16_compress.h"

#include "hooks/compress.h"

namespace narrowcast::hooks {

std::unique_ptr<CommHook> make_fp16_compress_hook(const HookOptions& options) {
  return std::make_unique<CompressHook>(options, CompressHook::Format{"fp16_compress", at::kHalf});
}

}  // namespace narrowcast::hooks

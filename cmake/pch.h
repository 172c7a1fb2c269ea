// The LibTorch headers that nearly every file of ours needs, parsed once. Do not rely on this header: each file
// includes the headers that it uses, and the structure tests compile every public header alone.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

// The Gloo backend, which moves tensors on the CPU.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/ddp/backends/group_backend.h"

namespace narrowcast {

// Checks that Gloo works with the environment variables of this process. Throws as init_process_group does.
void check_gloo_backend();

// Connects this rank to all others. Throws as init_process_group does.
GroupBackend create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, const WorkerEnv& env,
                                 const ProcessGroupOptions& options);

// Ends all connections of Gloo's `backend`, and of engines that send for it: each wait for another rank then ends with
// an error. Thread-safe. Throws nothing.
void close_gloo_connections(c10d::Backend& backend);

// From now on close_gloo_connections(*backend) also ends those of `other`, another of Gloo's backends, as long as both
// exist: a rank may wait in another group for a machine that is lost. Thread-safe.
void close_together(const c10::intrusive_ptr<c10d::Backend>& backend, const c10::intrusive_ptr<c10d::Backend>& other);

}  // namespace narrowcast

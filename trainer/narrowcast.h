// Everything a trainer of one's own needs: data-parallel training with hooks that
// send fewer bytes. Programs also link narrowcast::trainer.
#pragma once

#include "hooks/factory.h"
#include "models/registry.h"
#include "ops/errors.h"
#include "trainer/ddp/distributed_data_parallel.h"
#include "trainer/process_group/consensus.h"
#include "trainer/process_group/network_errors.h"
#include "trainer/process_group/process_group.h"
#include "trainer/version.h"
#include "trainer/worker_env.h"

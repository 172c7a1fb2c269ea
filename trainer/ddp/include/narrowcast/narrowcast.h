// All headers that a custom trainer needs: data-parallel training with hooks that send fewer bytes. Programs link
// narrowcast::ddp.
#pragma once

#include <narrowcast/consensus.h>
#include <narrowcast/ddp.h>
#include <narrowcast/elastic_group.h>
#include <narrowcast/errors.h>
#include <narrowcast/grad_scaler.h>
#include <narrowcast/hierarchical_averager.h>
#include <narrowcast/hooks.h>
#include <narrowcast/join.h>
#include <narrowcast/learning_rate.h>
#include <narrowcast/muon.h>
#include <narrowcast/network_errors.h>
#include <narrowcast/outer_optimizer.h>
#include <narrowcast/process_group.h>
#include <narrowcast/sharded_optimizer.h>
#include <narrowcast/version.h>
#include <narrowcast/worker_env.h>

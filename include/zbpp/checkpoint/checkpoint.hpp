// SPDX-License-Identifier: Apache-2.0
//
// All of component checkpoint.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/run_folder.hpp>
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/checkpoint/stored_model.hpp>

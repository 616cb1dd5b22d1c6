// SPDX-License-Identifier: Apache-2.0
//
// All definitions of component checkpoint, for the one source file that compiles them.
#pragma once

#include <zbpp/checkpoint/impl/files.ipp>
#include <zbpp/checkpoint/impl/metadata.ipp>
#include <zbpp/checkpoint/impl/run_folder.ipp>
#include <zbpp/checkpoint/impl/safetensors.ipp>
#include <zbpp/checkpoint/impl/stored_model.ipp>

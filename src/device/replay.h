// Actions that come again: their launches are kept as graphs, and put on the compute stream in a few calls.
//
// An action is all that is issued on compute between begin_action() and end_action(). Layers run each time:
// ops are checked, counted, and their memory placed as ever. What would be launched is held against what the
// action launched the last time; launches that are the same to the last argument make pieces, each a graph,
// and a piece is launched when all of it has been asked for again. So off and on differ in nothing but how
// launches reach the device:
//  - arguments that differ from step to step (dropout's keys, a moving loss scale) are launched as they are,
//    between graphs;
//  - a piece ends where the host looks (download, sync) or another stream meets compute (record, wait, copy);
//  - actions whose launches are others each time are not kept;
//  - equal pieces (microbatches that find the same places free) are one graph.
// No op is looked at for what it is: a launch must not do anything on the host that its next one relies on.
#pragma once
#include <memory>

#include "device/device.h"

namespace trireme {

// Of a device that can keep none a bad request.
std::unique_ptr<Device> make_replay_device(std::unique_ptr<Device> inner);

}  // namespace trireme

// Process exit and fork. Closing a device finishes its work; exit drops what has not started; a child of fork cannot
// use the devices of its parent (their threads do not exist there), every call on them says so, and it may open its
// own.
#pragma once

namespace slip {

struct DeviceCore;

bool exiting();                            // exit() has begun
void register_device(DeviceCore& core);    // from opening
void unregister_device(DeviceCore& core);  // to closing

}  // namespace slip

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package resident is for processes that stay: they neither exit nor spin when the node is
// briefly short of file descriptors or memory, and log what fails once, not each time.
package resident

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package resident helps processes that run for a long time. They neither exit nor use all CPU
// time if the node briefly lacks file descriptors or memory, and they log a repeated failure
// only once.
package resident

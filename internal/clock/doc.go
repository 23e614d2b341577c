// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock identifies the current boot of the kernel, sleeps until a context ends, and
// stores the time at which a GC's list of valid attachments was made.
package clock

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock is what time alone does not say: which boot of the kernel this is, a sleep
// that a context ends, and the moment at which a GC's list of valid attachments was begun.
package clock

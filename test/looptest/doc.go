// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package looptest tests both directions of package cnm against each other, with the installed
// programs. A runtime runs the plugin cnm of patchbay-cnm. That plugin calls the driver
// `patchbayd docker`, which runs a CNI chain of patchbay's plugins.
package looptest

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package resident tests plugin processes that hand their calls over to a process that stays
// (internal/handover): that both do the same, and that no call is lost, done twice or half done, whichever
// of the two dies or hangs.
package resident

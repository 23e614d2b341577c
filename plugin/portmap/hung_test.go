// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// A process is stopped while it holds the lock of a bridge's fact. An ADD on that bridge fails in
// time, names the process and leaves nothing. A DEL there does everything else and reports what
// is left. Attachments of another bridge come and go. When the process has ended, everything
// works again.
func TestHolderThatIsStopped(t *testing.T) {
	n := node.New(t)
	b := n.Bridge("cni0", "10.1.0.1/24")
	a, second := of(b.Container("c1", "10.1.0.10/24")), of(b.Container("c2", "10.1.0.11/24"))
	other := of(n.Bridge("cni1", "10.2.0.1/24").Container("c3", "10.2.0.10/24"))
	conf := func(port string) string { return ports(strings.Replace(webPort, "8080", port, 1)) }
	a.must(t, spec.Add, conf("8080"))
	mine := elements(t)
	pid, end := nettest.HungLocker(t, "/run/patchbay/shared/"+hex.EncodeToString([]byte(factLocalNet+"cni0")))
	hangs := func(caller *attachment, verb spec.Verb, conf string) {
		t.Helper()
		var err, late error
		for _, limit := range []time.Duration{time.Second, 10 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err = caller.callIn(ctx, t, verb, conf)
			late = ctx.Err()
			cancel()
			if late == nil { // else on a busy machine
				break
			}
		}
		if spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), "held by process "+pid) || late != nil {
			t.Errorf("%s: %v, %v", verb, err, late)
		}
	}
	hangs(second, spec.Add, conf("8081"))
	if now := elements(t); now != mine {
		t.Errorf("%d elements after an ADD that failed, of %d", now, mine)
	}
	other.must(t, spec.Add, conf("8082"))
	other.del(t)
	hangs(a, spec.Del, conf("8080"))
	if n := elements(t); n != 1 {
		t.Errorf("%d elements are left by DEL: there is the bridge's guard", n)
	}
	end()
	a.del(t)
	second.del(t)
	nothingLeft(t)
}

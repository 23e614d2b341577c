// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// The kernel cannot read stable_secret before it has a value (EIO).
func TestSysctlThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	const key = "net/ipv6/conf/eth0/stable_secret"
	if v, err := w.inside().Sysctl(key); err == nil {
		t.Fatalf("%s is %q already", key, v)
	}
	const conf = `,"sysctl":{"net.ipv6.conf.eth0.stable_secret":"2001:0db8:0000:0000:0000:0000:0000:0001"}}`
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
		if _, err := w.call(verb, conf, options{}); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

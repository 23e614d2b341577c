// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package invoke_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// The output of a plugin does not fill the runtime's memory.
func TestEndlessOutput(t *testing.T) {
	dir := script(t, "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2")
	var log strings.Builder
	call := &spec.Call{Verb: spec.Status, Path: []string{dir}}
	if _, err := (&invoke.Exec{Stderr: &log}).Invoke(context.Background(), "sh-plugin", call); err == nil || !strings.Contains(err.Error(), "is longer than") {
		t.Error(err)
	}
	if log.Len() > 17<<20 {
		t.Errorf("%d bytes on standard error", log.Len())
	}
}

// A plugin gets the variables of its call, not those of the call in which this process runs.
func TestInheritedVariables(t *testing.T) {
	dir := script(t, `echo "$CNI_NETNS_OVERRIDE,$TRACEPARENT,$TRACESTATE,$BAGGAGE,$KEPT"`)
	base := []string{"CNI_NETNS_OVERRIDE=1", "TRACEPARENT=a", "TRACESTATE=b", "BAGGAGE=c", "KEPT=yes", "PATH=" + os.Getenv("PATH")}
	for want, call := range map[string]spec.Call{
		",,,,yes":     {},
		"1,p,s,b,yes": {NetNSOverride: true, TraceParent: "p", TraceState: "s", Baggage: "b"},
		",p,,,yes":    {TraceParent: "p"},
	} {
		call.Verb, call.Path = spec.Status, []string{dir}
		out, err := (&invoke.Exec{Base: base}).Invoke(context.Background(), "sh-plugin", &call)
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%q %v, want %q", out, err, want)
		}
	}
}

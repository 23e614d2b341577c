// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// The policies of a namespace that need as many selectors as the budget allows, which are 500, are loaded within a second of
// processor time. One selector more is refused.
func TestBudgetLoadsInTime(t *testing.T) {
	const limit = 500
	most := time.Second
	if testing.Short() { // in the emulated machine of scripts/test-kernel, a tenth as fast
		most *= 10
	}
	s := shop(t)
	e, _ := open(t)
	load(t, e, policy.Compile(s))
	add(t, s, wide(limit))
	p := policy.Compile(s)
	if len(p.Problems) > 0 || len(p.Sets) < limit {
		t.Fatalf("%d sets, problems %.200v", len(p.Sets), p.Problems)
	}
	began := spent(t, unix.CLOCK_PROCESS_CPUTIME_ID)
	load(t, e, p)
	took := time.Duration(spent(t, unix.CLOCK_PROCESS_CPUTIME_ID) - began)
	if t.Logf("%d selectors take %v", limit, took); took > most {
		t.Errorf("it takes more than %v", most)
	}
	s.Policies = nil
	add(t, s, wide(limit+1))
	if p := policy.Compile(s); len(p.Problems) != 1 {
		t.Errorf("one selector more: problems %.200v", p.Problems)
	}
}

// wide returns a policy with so many selectors.
func wide(selectors int) string {
	var from []string
	for i := range selectors {
		from = append(from, fmt.Sprintf(`{"from":[{"namespaceSelector":{},"podSelector":{"matchExpressions":[{"key":"x%d","operator":"DoesNotExist"}]}}]}`, i))
	}
	return `shop/wide {"podSelector":{},"ingress":[` + strings.Join(from, ",") + `]}`
}

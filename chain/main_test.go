// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
)

func TestMain(m *testing.M) { chaintest.Main(m) }

// bench is a runtime with its own directories, whose plugins are recorders.
type bench struct{ *chaintest.Bench }

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{chaintest.New(t)}
}

var attachment = chain.Attachment{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}

const three = `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1"},{"type":"rec2"},{"type":"rec3"}]}`

// failing is a list of three plugins. Plugin number n fails the verb.
func failing(verb string, n int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","plugins":[%s]}`, strings.Join([]string{
		member(1, n, verb), member(2, n, verb), member(3, n, verb),
	}, ","))
}

func member(i, n int, verb string) string {
	if i != n && n != 0 {
		return fmt.Sprintf(`{"type":"rec%d"}`, i)
	}
	return fmt.Sprintf(`{"type":"rec%d","fail":{%q:{"code":11,"msg":"not now %d"}}}`, i, verb, i)
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

// The contract holds for a container to which no policy applies, and for a pod that policies select in
// both directions.
func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "policy")})
	writeMirror(t, `shop/web {"podSelector":{},"policyTypes":["Ingress","Egress"]}`)
	s := plugintest.Subject(t, "policy")
	s.Name, s.Conf, s.Stateless, s.Unchecked, s.Refused = "policy-closed", nil, false, false, nil
	s.Args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_UID=42"
	s.Refused = []conformance.Refusal{{About: "no name of a pod", Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=../x", Code: 4}}
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: s})
}

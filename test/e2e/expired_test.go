// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
)

// proveExpired gives an agent a kubeconfig whose client certificate expired yesterday. The API server
// refuses it. doctor says what to do, pods keep their network, and a good kubeconfig needs no restart.
func (k *cluster) proveExpired(node string, pods ...string) {
	k.Helper()
	defer k.took("expired kubeconfig")()
	file := k.dir + "/cfg/agent.kubeconfig"
	good, err := os.ReadFile(file)
	if err != nil {
		k.Fatal(err)
	}
	run(k.T, "sh", "-c", "cd "+k.dir+`/pki && {
		openssl req -newkey rsa:2048 -nodes -keyout expired.key -out expired.csr -subj /O=system:masters/CN=expired
		openssl x509 -req -in expired.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out expired.crt -days -1; } 2>&1`)
	admin, err := os.ReadFile(k.dir + "/cfg/admin.kubeconfig")
	if err != nil {
		k.Fatal(err)
	}
	k.write(file, strings.ReplaceAll(string(admin), "/pki/admin.", "/pki/expired."))
	k.stopAgent(node, "KILL")
	k.startAgent(node)
	k.doctorSays(node, "APIServerFailed: the API server refuses this node's credentials: renew the kubeconfig", true)
	k.proveMesh(pods...)
	k.write(file, string(good))
	k.doctorSays(node, "APIServerFailed", false)
}

// write writes a file of the lab.
func (k *cluster) write(file, text string) {
	k.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		k.Fatal(err)
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// The real plugins make an attachment in each of their forms. Its namespace is deleted. Leftovers
// then removes every trace of the attachment from the firewall.
func TestRealReference(t *testing.T) {
	sh(t, "iptables -V | grep -q nf_tables") // the reference must call iptables-nft
	dir := os.Getenv(reference)
	if dir == "" {
		t.Fatal("no reference plugins: see above why they were not built")
	}
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			c := open(t)
			a := Names{"refnet", "0123456789ab", "eth0"}
			ns := nettest.NewNS(t, "ref-"+backend)
			result := refAdd(t, dir, "bridge", a, ns, nil, map[string]any{
				"bridge": "refbr0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
				"ipam": map[string]any{"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": t.TempDir()},
			})
			refAdd(t, dir, "portmap", a, ns, result, map[string]any{
				"backend":       backend,
				"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
			})
			refAdd(t, dir, "firewall", a, ns, result, map[string]any{"backend": "iptables"})
			const list = "nft -a list ruleset; iptables-nft-save; iptables-nft -t nat -S"
			before := sh(t, list)
			traces := []string{"10.77.0.2", a.ContainerID, a.masqHash(), a.chainName(""), a.chainName("DN-")}
			if n := count(before, traces); n < 3 {
				t.Fatalf("the reference left only %d kinds of traces:\n%s", n, before)
			}
			one := func(netip.Addr) int { return 1 }
			two := func(netip.Addr) int { return 2 }
			masquerade, port, accept := a.Masquerading(addrs("10.77.0.2")), a.Publishing(addrs("10.77.0.2"), one), Accepting(addrs("10.77.0.2"))
			stand(t, c, true, masquerade, port, accept)
			stand(t, c, false, a.Masquerading(addrs("10.77.0.3")), a.Publishing(addrs("10.77.0.2"), two), Accepting(addrs("10.77.0.3")))
			sh(t, map[string]string{
				"iptables": "iptables-nft -t nat -F " + a.chainName("") + "; iptables-nft -t nat -F CNI-HOSTPORT-DNAT",
				"nftables": "nft flush chain inet cni_plugins_masquerade masq_checks; nft flush chain ip cni_hostport hostports",
			}[backend])
			stand(t, c, false, masquerade, port)
			stand(t, c, true, accept)
			commit(t, c, Leftovers(a, addrs("10.77.0.2")))
			stand(t, c, false, accept)
			if after := sh(t, list); count(after, traces) > 0 {
				t.Errorf("left behind:\n%s", after)
			}
			sh(t, "ip link del refbr0")
		})
	}
}

func stand(t *testing.T, c *nft.Conn, want bool, list ...Made) {
	t.Helper()
	for _, m := range list {
		if ok, err := m.Exist(c, "/proc"); ok != want || err != nil {
			t.Errorf("rules for %v in %s stand: %v, %v", m.addrs, m.table, ok, err)
		}
	}
}

// count returns how many of the traces are in s.
func count(s string, traces []string) (n int) {
	for _, x := range traces {
		if strings.Contains(s, x) {
			n++
		}
	}
	return n
}

// refAdd calls ADD of a reference plugin and returns its result.
func refAdd(t *testing.T, dir, plugin string, a Names, ns string, prev json.RawMessage, conf map[string]any) json.RawMessage {
	t.Helper()
	conf["cniVersion"], conf["name"], conf["type"] = "1.0.0", a.Network, plugin
	if prev != nil {
		conf["prevResult"] = prev
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, plugin))
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+a.ContainerID, "CNI_IFNAME="+a.IfName, "CNI_NETNS="+ns, "CNI_PATH="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s ADD: %v\n%s", plugin, err, out)
	}
	return out
}

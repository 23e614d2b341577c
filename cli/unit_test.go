// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/fields"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/pages"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// containerd passes the ports of a pod also to loopback, which publishes none.
func TestPortsOfNetworksThatTakeThem(t *testing.T) {
	ports := map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80}}}
	for config, want := range map[string]int{
		`{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}`:                                               0,
		`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`: 1,
		"": 1,
	} {
		at := &gc.Attached{InCache: true, Cached: chain.Cached{Config: []byte(config), Attachment: chain.Attachment{Capabilities: ports}}}
		if got := localAttachmentOf(at).Ports; len(got) != want {
			t.Errorf("%q: %v", config, got)
		}
	}
}

func TestParsePorts(t *testing.T) {
	one := func(host, container uint16, proto, addr string) []spec.PortMapping {
		ip, _ := netip.ParseAddr(addr)
		return []spec.PortMapping{{HostPort: host, ContainerPort: container, Protocol: proto, HostIP: ip}}
	}
	for _, test := range []struct {
		in   string
		want []spec.PortMapping
		err  string
	}{
		{in: "8080:80", want: one(8080, 80, "tcp", "")},
		{in: "8080:80/UDP", want: one(8080, 80, "udp", "")},
		{in: "1:65535/sctp", want: one(1, 65535, "sctp", "")},
		{in: "127.0.0.1:8080:80", want: one(8080, 80, "tcp", "127.0.0.1")},
		{in: "[::1]:8080:80/tcp", want: one(8080, 80, "tcp", "::1")},
		{in: "8080-8081:80-81", want: append(one(8080, 80, "tcp", ""), one(8081, 81, "tcp", "")...)},
		{in: "[::1]:65534-65535:65534-65535/udp", want: append(one(65534, 65534, "udp", "::1"), one(65535, 65535, "udp", "::1")...)},
		{in: "80-80:1-1", want: one(80, 1, "tcp", "")},
		{in: "80", err: "the host's port is missing"},
		{in: "[::1]", err: "the host's port is missing"},
		{in: "", err: "the host's port is missing"},
		{in: "0:80", err: "a port is a number"},
		{in: "80:", err: "a port is a number"},
		{in: "65536:80", err: "a port is a number"},
		{in: "-1:80", err: "a port is a number"},
		{in: "80-:80", err: "a port is a number"},
		{in: "80-90-95:80", err: "a port is a number"},
		{in: "65530-65536:1-7", err: "a port is a number"},
		{in: "90-80:1-11", err: "the range 90-80 ends before it begins"},
		{in: "8080-8083:80-82", err: "4 ports of the host, but 3 of the container"},
		{in: "8080-8083:80", err: "4 ports of the host, but 1 of the container"},
		{in: "host:80:80", err: "the host's address is not an IP address"},
		{in: "[::1:80:80", err: "the host's address is not an IP address"},
		{in: "::1:80:80", err: "an IPv6 address needs brackets, and no other address may have them"},
		{in: "[127.0.0.1]:80:80", err: "an IPv6 address needs brackets, and no other address may have them"},
		{in: "80:80/", err: "the protocol is"},
	} {
		got, err := parsePorts(test.in)
		switch {
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%q: error %v, not %q", test.in, err, test.err)
		case test.err == "" && (err != nil || !slices.Equal(got, test.want)):
			t.Errorf("%q: %v, %v", test.in, got, err)
		}
	}
}

func TestPortsText(t *testing.T) {
	var ports []spec.PortMapping
	for _, p := range []string{"8081:81", "8080:80", "8080:80/udp", "127.0.0.1:9000-9002:90-92", "[::1]:53:53"} {
		list, err := parsePorts(p)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, list...)
	}
	const want = "0.0.0.0:8080-8081->80-81/tcp, 0.0.0.0:8080->80/udp, 127.0.0.1:9000-9002->90-92/tcp, [::1]:53->53/tcp"
	if got := portsText(ports); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

func FuzzParsePorts(f *testing.F) {
	f.Add("[::1]:8080-8090:80-90/tcp")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parsePorts(s)
		if err == nil && len(list) == 0 {
			t.Errorf("%q: no port and no error", s)
		}
		for _, m := range list {
			if m.HostPort == 0 || m.ContainerPort == 0 {
				t.Errorf("%q: %v", s, m)
			}
		}
	})
}

func TestOnlyLoopback(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	for text, want := range map[string]bool{
		"":                        true,
		"nameserver 127.0.0.53\n": true,
		"nameserver 127.0.0.53\nnameserver ::1\noptions edns0\n": true,
		"# nameserver 192.0.2.1\n":                               true,
		"nameserver 127.0.0.53\nnameserver 192.0.2.1\n":          false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := onlyLoopback(file); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestDefaultNetwork checks that the network has no IPv6 if the machine has none.
func TestDefaultNetwork(t *testing.T) {
	proc := t.TempDir()
	count := func() int {
		n, err := defaultNetwork(paths.Paths{Proc: proc})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(n.Bytes), `"subnet"`)
	}
	if n := count(); n != 1 {
		t.Errorf("%d ranges without IPv6", n)
	}
	write := func(file, text string) {
		path := filepath.Join(proc, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("net/if_inet6", "")
	write("sys/net/ipv6/conf/default/disable_ipv6", "1\n")
	if n := count(); n != 1 {
		t.Errorf("%d ranges with IPv6 switched off", n)
	}
	write("sys/net/ipv6/conf/default/disable_ipv6", "0\n")
	if n := count(); n != 2 {
		t.Errorf("%d ranges with IPv6", n)
	}
}

// TestNoNamespaces checks that the hint names the setting that forbids namespaces.
func TestNoNamespaces(t *testing.T) {
	for key, test := range map[string]struct{ value, hint string }{
		"kernel/apparmor_restrict_unprivileged_userns": {"1\n", "AppArmor restricts unprivileged user namespaces"},
		"kernel/unprivileged_userns_clone":             {"0\n", "sysctl kernel.unprivileged_userns_clone=1"},
		"user/max_user_namespaces":                     {"0\n", "sysctl user.max_user_namespaces"},
		"none":                                         {"", "in a container it needs"},
	} {
		proc := t.TempDir()
		path := filepath.Join(proc, "sys", key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(test.value), 0o600); err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		a := &app{paths: paths.Paths{Proc: proc}, stderr: &stderr}
		if code := a.report(a.noNamespaces(fmt.Errorf("make namespaces: %w", unix.EPERM))); code != exitFailure {
			t.Errorf("%s: status %d", key, code)
		}
		if !strings.Contains(stderr.String(), "patchbay: hint: ") || !strings.Contains(stderr.String(), test.hint) {
			t.Errorf("%s: %s", key, stderr.String())
		}
	}
}

// TestFieldsOf covers every kind of type in a configuration.
func TestFieldsOf(t *testing.T) {
	type inner struct {
		Name string `json:"name"`
	}
	conf := &struct {
		*inner
		On     bool             `json:"on"`
		MTU    int              `json:"mtu"`
		List   []inner          `json:"list"`
		ByName map[string]inner `json:"byName"`
		Nested struct {
			Deep *int `json:"deep"`
		} `json:"nested"`
		Hidden string `json:"-"`
		Bare   string
	}{MTU: 1500}
	var got []string
	for _, f := range fields.Of(conf, "") {
		table := newTable()
		fieldRows(table, f, "")
		var lines []string
		for _, cells := range table.rows {
			lines = append(lines, strings.Join(cells, "|"))
		}
		got = append(got, strings.Join(lines, "\n"))
	}
	want := []string{
		"name|string", "on|boolean|", "mtu|integer|(default 1500)", "list|list of object|\n  name|string",
		"byName|map of object|\n  name|string", "nested|object|\n  deep|integer", "Bare|string",
	}
	for i := range want {
		want[i] = strings.TrimRight(want[i], "|")
	}
	for i := range got {
		got[i] = strings.TrimRight(got[i], "|")
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestManPage compares docs/man/patchbay.1 with the commands.
func TestManPage(t *testing.T) {
	var page bytes.Buffer
	a := &app{getenv: func(string) string { return "" }, stdout: &page, plugins: all.Plugins()}
	if err := (&manCommand{app: a}).Execute(nil); err != nil {
		t.Fatal(err)
	}
	pages.Golden(t, "../docs/man/patchbay.1", page.String(), *update)
}

// Each command of the man page has the usage line of its help, with the arguments.
func TestManPageHasUsages(t *testing.T) {
	page, err := os.ReadFile("../docs/man/patchbay.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"patchbay add [FLAGS] NETWORK NETNS", "patchbay gc [FLAGS] [NETWORK]", "patchbay network rm [FLAGS] NETWORK", "patchbay why [FLAGS] FROM|SERVICE [TO[:PORT[/PROTO]]]",
		"patchbay repair [FLAGS]", "patchbay convert [FLAGS] FILE", "patchbay inspect [FLAGS] CONTAINER[/IFNAME]",
	} {
		if !strings.Contains(string(page), `\fBUsage\fP: `+line+"\n") {
			t.Errorf("the man page lacks %q", line)
		}
	}
	if strings.Contains(string(page), "-OPTIONS]") {
		t.Error("the man page has a usage line of the library")
	}
}

// The man page and docs/cli.md have the same exit statuses.
func TestManPageHasStatuses(t *testing.T) {
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| status | meaning |\n| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	_, statuses, _ := strings.Cut(manTail, ".SH EXIT STATUS\n")
	statuses, _, _ = strings.Cut(statuses, ".PP\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 5 {
		t.Fatalf("the table of docs/cli.md is %q", table)
	}
	for _, row := range rows {
		status := strings.TrimSpace(strings.Split(row, "|")[1])
		if status != "other" && !strings.Contains(statuses, ".TP\n"+status+"\n") {
			t.Errorf("the man page lacks the status %s", status)
		}
	}
	if got, want := strings.Count(statuses, ".TP\n"), len(rows)-1; got != want {
		t.Errorf("the man page has %d rows of statuses, docs/cli.md %d", got, want)
	}
}

// An install waits for another one. It gives up and names the other process.
func TestInstallerWaitsWithAnEnd(t *testing.T) {
	dir := t.TempDir()
	unlock, err := durable.LockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	want := fmt.Sprintf("held by process %d", os.Getpid())
	if _, err := (&installer{dir: dir}).open(ctx, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v, not %s", err, want)
	}
}

// ps marks a namespace as unsure if it may be another container's by now.
func TestPsOfAnUnsureNamespace(t *testing.T) {
	c := &psCommand{app: &app{}}
	for state, want := range map[life.State]string{life.Alive: "blue", life.Unsure: "blue (unsure)"} {
		c.app.paths.NetNS = "/run/netns"
		row := c.row(&localAttachment{NetNS: "/run/netns/blue", Alive: true, state: state})
		if !slices.Contains(row, want) {
			t.Errorf("%v: %q", state, row)
		}
	}
}

// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// recovery is how long a node may enforce nothing after another program removed the policies.
const recovery = time.Second

// repairs is the metric that counts such repairs.
const repairs = "patchbay_node_policy_foreign_changes_total"

// TestPolicyRecovers harms the policies of a node while pods connect to a server that a policy guards.
// While agents are killed at any moment, run twice, or are replaced by an earlier build, nothing opens or
// closes. After `nft flush ruleset`, after a reload as firewalld does it, and after foreign
// changes, the node is right again within a second, and says so in its metrics.
func TestPolicyRecovers(t *testing.T) {
	if !ours() || !nightly() {
		t.Log("runs in make nightly, with our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		p := newPoliced(t)
		defer p.saveLogs()
		p.killed(40)
		p.prove("while the agent was killed")
		p.twoAgents()
		p.prove("with two agents")
		if dir := os.Getenv(earlierAgentEnv); dir != "" {
			p.otherAgent(dir)
			p.prove("with an earlier agent, and after it")
		}
		for _, h := range harms {
			p.harmed(h.what, h.command)
		}
		p.prove("in the end")
	})
}

// earlierAgentEnv is the environment variable with the directory of an earlier agent (scripts/earlier).
const earlierAgentEnv = "PATCHBAY_EARLIER_AGENT"

// change changes the server's policy in a way that concerns none of the pods.
func (p *policed) change(n int) {
	p.Helper()
	p.kubectl("patch", "networkpolicy", "guard", "--type=json", "-p",
		fmt.Sprintf(`[{"op": "add", "path": "/spec/ingress/1", "value": {"from": [{"ipBlock": {"cidr": "192.0.2.%d/32"}}]}}]`, n%250))
}

// killed kills the agent of n1 at some moment after a change, and starts it again.
func (p *policed) killed(times int) {
	p.Helper()
	for n := range times {
		p.change(n)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		p.stopAgent("n1", "KILL")
		p.startAgent("n1")
		if n%4 == 0 { // in the first moments of its life
			time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
			p.stopAgent("n1", "KILL")
			p.startAgent("n1")
		}
	}
	p.current()
}

// current waits until n1 enforces the newest change.
func (p *policed) current() {
	p.Helper()
	p.change(251)
	eventually(p, "the newest change is in the kernel", func() error {
		if rules := p.node("n1", "nft", "list", "table", "inet", "patchbay"); !strings.Contains(rules, "192.0.2.1") {
			return fmt.Errorf("no rule of the change in:\n%s", rules)
		}
		return nil
	})
}

// twoAgents starts a second agent on n1 with its own directory, which the first one's lock does not
// cover, while the policy changes.
func (p *policed) twoAgents() {
	p.Helper()
	cmd := exec.Command("nsenter", "-t", p.pid("n1-holder"), "-m", "-u", "-n", "--", "unshare", "-m", "sh", "-c",
		"mount -t tmpfs -o mode=755 tmpfs /var/lib/patchbay && exec \"$@\"", "sh", patchbayd(), "node", "--kubeconfig", p.dir+"/cfg/agent.kubeconfig", "--program", patchbay(),
		"--cluster-cidr=10.244.0.0/16", "--cluster-cidr=fd00:244::/56", "--listen=127.0.0.1:9473")
	log, err := os.Create(filepath.Join(p.dir, "log/n1-second.log"))
	if err != nil {
		p.Fatal(err)
	}
	defer log.Close()
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "NODE_NAME=n1"), log, log
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for n := range 20 {
		p.change(n)
		time.Sleep(300 * time.Millisecond)
	}
	select {
	case err := <-ended:
		text, _ := os.ReadFile(log.Name())
		p.Logf("the second agent ended by itself: %v\n%s", err, text)
	default:
		if err := cmd.Process.Kill(); err != nil {
			p.Error(err)
		}
		<-ended
	}
	p.current()
}

// otherAgent replaces the agent of n1 by an earlier one, and then by this one.
func (p *policed) otherAgent(dir string) {
	p.Helper()
	p.stopAgent("n1", "TERM")
	flags := p.agentFlags
	p.agentFlags, p.agentProgram = nil, dir+"/patchbayd"
	p.startAgent("n1")
	time.Sleep(5 * time.Second)
	p.stopAgent("n1", "TERM")
	p.agentFlags, p.agentProgram = flags, ""
	p.startAgent("n1")
	p.current()
}

// harms are what other programs do to the table.
var harms = []struct{ what, command string }{
	{"nft flush ruleset", "nft flush ruleset"},
	{"a reload as firewalld does it", `printf 'flush ruleset\nadd table inet firewalld\nadd chain inet firewalld c { type filter hook input priority 10; }\n' | nft -f -`},
	{"nft delete table", "nft delete table inet patchbay"},
	{"nft flush table", "nft flush table inet patchbay"},
	{"a base chain without rules", "nft flush chain inet patchbay policy_ingress"},
}

// harmed runs a command on n1, and measures for how long the strangers get answers, and for how long
// friends get none.
func (p *policed) harmed(what, command string) {
	p.Helper()
	before := p.metric("n1", repairs)
	began := time.Now()
	p.node("n1", "sh", "-c", command)
	eventually(p, "the node is right after "+what, func() error {
		if since := time.Since(began); since < 3*time.Second {
			return fmt.Errorf("only %v have passed", since)
		}
		return p.rightSince(time.Now().Add(-2 * time.Second))
	})
	var open, shut time.Duration
	for _, w := range p.denied {
		if _, _, last := w.since(began); !last.IsZero() {
			open = max(open, last.Sub(began))
		}
	}
	for _, w := range p.allowed {
		if _, _, last := w.since(began); !last.IsZero() {
			shut = max(shut, last.Sub(began))
		}
	}
	p.Logf("%s: a stranger's last answered connection was %v later, a friend's last lost one %v", what, open.Round(time.Millisecond), shut.Round(time.Millisecond))
	if open > recovery || shut > recovery {
		p.Errorf("%s: the node was right only after %v", what, max(open, shut))
	}
	if after := p.metric("n1", repairs); after <= before {
		p.Errorf("%s: the metric %s stays %s", what, repairs, strconv.FormatFloat(after, 'g', -1, 64))
	}
	p.forget()
}

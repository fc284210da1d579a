//! A turn's prompt: instructions, input and manifest.

use divan::Bencher;
use domain::{
    AccountId, Actor, ActorKind, AgentSlug, InstructionLayout, MessageId, NotificationId, TaskId, TaskStatus, TurnId,
    TurnState,
};
use prompt::{
    CalledTool, Extract, InputFacts, InstructionFacts, Manifest, MarkSecret, PastLimits, PastTurn, TaskFacts,
    ThreadMessage, ToolNames, input, instructions, manifest::Because, past,
};
use time::OffsetDateTime;
use uuid::Uuid;

fn actor() -> Actor {
    Actor {
        kind: ActorKind::Agent,
        id: "0190a7c2-7f0e-7000-8000-000000000001".to_owned(),
        name: "coder".to_owned(),
        via: None,
    }
}

fn facts(body_bytes: usize, thread: u128) -> InputFacts {
    let message = |number| ThreadMessage {
        id: MessageId(Uuid::from_u128(number)),
        author: actor(),
        body: "Noted. There is nothing else to do about this notification for the moment.".to_owned(),
        at: OffsetDateTime::UNIX_EPOCH,
    };
    InputFacts {
        answer_to: None,
        result_of: None,
        mail: None,
        notification: NotificationId::parse("n-1").expect("an id"),
        kind: "message".to_owned(),
        sender: actor(),
        title: None,
        body: "please look into it, ".repeat(body_bytes / 21),
        about_message: None,
        task: Some(TaskFacts {
            id: TaskId::parse("PROJ-7").expect("an id"),
            title: "The seventh".to_owned(),
            description: "Look into things as they come. ".repeat(10),
            status: TaskStatus::InProgress,
        }),
        extract: Extract {
            messages: (0..thread).map(message).collect(),
            new: 100,
        },
        description: Some(Because::FirstTurn),
        briefing: None,
        overview: None,
        further: Vec::new(),
        is_interrupted: false,
        stopped: None,
        subagents: Vec::new(),
    }
}

#[divan::bench(args = [(200, 0), (200, 10), (65_536, 10)])]
fn input_of(bencher: Bencher, (body_bytes, thread): (usize, u128)) {
    let facts = facts(body_bytes, thread);
    let account = AccountId::parse("acme").expect("an id");
    let secret = MarkSecret::new([7; 32]);
    bencher.bench(|| {
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        let marks = secret.marks(&account, TurnId(Uuid::nil()));
        (input(&facts, marks, &mut manifest), manifest)
    });
}

#[divan::bench]
fn instructions_of_an_agent(bencher: Bencher) {
    let account = AccountId::parse("acme").expect("an id");
    let slug = AgentSlug::parse("coder").expect("a slug");
    let tools = ToolNames::new(str::to_owned);
    let facts = InstructionFacts {
        account: &account,
        agent_slug: &slug,
        agent_name: "Coder",
        agent_role: "Looks into things.",
        has_task: true,
        is_coordinator: false,
        is_branch: false,
        orchestrator: None,
        persona: None,
        task_context: None,
        tools: &tools,
    };
    bencher.bench(|| {
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        (instructions(&facts, &mut manifest), manifest)
    });
}

/// An assembled prompt of 50 entries, from their rows to the items and the manifest: below 2 ms.
#[divan::bench(args = [(600, 600), (2_000, 500)])]
fn context_of_fifty_turns(bencher: Bencher, (body_bytes, reply_bytes): (usize, usize)) {
    const ENTRIES: u128 = 50;
    let account = AccountId::parse("acme").expect("an id");
    let secret = MarkSecret::new([7; 32]);
    let rows: Vec<(TurnId, String, Vec<u8>)> = (0..ENTRIES)
        .map(|n| {
            let (id, mut manifest) = (TurnId(Uuid::from_u128(n)), Manifest::new(InstructionLayout::Layered));
            let text = input(&facts(body_bytes, 2), secret.marks(&account, id), &mut manifest);
            (id, text, manifest.packed())
        })
        .collect();
    let limits = PastLimits {
        entries_max: 50,
        bytes_max: 131_072,
        body_bytes_max: 4_096,
        reply_bytes_max: 8_192,
    };
    let turn = |(id, input, packed): &(TurnId, String, Vec<u8>)| PastTurn {
        id: *id,
        state: TurnState::Finished,
        input: input.clone(),
        manifest: Manifest::unpacked(packed),
        notes: Vec::new(),
        called: vec![CalledTool {
            name: "task_history".to_owned(),
            calls: 2,
            failed: 1,
        }],
        reply: Some("It is done, as far as I see. ".repeat(reply_bytes / 29)),
    };
    bencher.bench(|| {
        let turns: Vec<PastTurn> = rows.iter().map(turn).collect();
        let past = past(&turns, turns.len(), &limits, Because::Past, &[]);
        let mut manifest = Manifest::new(InstructionLayout::Layered);
        manifest.parts.clone_from(&past.parts);
        (past, manifest.packed())
    });
}
